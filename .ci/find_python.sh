#!/bin/sh
# Print the Python that `make` uses unless PYTHON= chooses another one. This is the python3 on PATH.
# If that was built without profile-guided optimisation, as pyenv builds it by default, Python code
# takes longer in it (docs/performance.md). Then it is the system's Python instead, if that has all
# that Systolith needs.
# The first argument names the system's Python (default: /usr/bin/python3).
set -u
folder=$(dirname "$0")
system=${1:-/usr/bin/python3}

# Succeed if python3 was configured without --enable-optimizations. Debian's Python does not record
# that it was optimised. A Python that records no settings counts as optimised.
is_slow() {
    python3 - <<'EOF' 2>/dev/null
import sys, sysconfig

settings = sysconfig.get_config_var("CONFIG_ARGS") or "--enable-optimizations"
sys.exit(sys.base_prefix == "/usr" or "--enable-optimizations" in settings)
EOF
}

if is_slow && PYTHON="$system" sh "$folder/check_host.sh" >/dev/null 2>&1; then
    echo "$system"
else
    echo python3
fi
