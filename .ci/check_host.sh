#!/bin/sh
# Checks for what cannot come from PyPI, and names the one command that installs what is missing.
set -u
python=${PYTHON:-python3}
missing=""
for tool in g++ make perl; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
if ! command -v "$python" >/dev/null 2>&1; then
    missing="$missing python3 python3-venv"
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "Systolith needs Python 3.11 or later, not $("$python" --version 2>&1); choose one with: make PYTHON=..." >&2
    exit 1
elif ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    missing="$missing python3-venv"
fi
if [ -n "$missing" ]; then
    echo "Systolith needs these first; install them with:" >&2
    echo "  apt-get install -y$missing" >&2
    exit 1
fi
