#!/bin/sh
# Check for what PyPI cannot provide, and name the one command that installs what is missing.
# `make setup` runs this; it covers all that `make sim` and `make test` need.
set -u
python=${PYTHON:-python3}
compiler=${SYSTOLITH_CXX:-g++}
missing=""

command -v "${compiler%% *}" >/dev/null 2>&1 || missing="$missing g++"
command -v make >/dev/null 2>&1 || missing="$missing make"
# Verilator's launcher needs modules that Debian's perl-base lacks.
perl -MFindBin -MGetopt::Long -MIO::File -MPod::Usage -e 1 >/dev/null 2>&1 ||
    missing="$missing perl"

# Succeed if cocotb can load this Python into a simulator: it needs the shared library, which
# Debian packages apart from the interpreter. The search is that of cocotb's find_libpython.
has_libpython() {
    "$python" - <<'EOF'
import ctypes, os, sys, sysconfig

get = sysconfig.get_config_var
stem = f"libpython{get('VERSION')}"
names = [get("INSTSONAME"), get("LDLIBRARY"), stem + (get("ABIFLAGS") or "") + ".so", stem + ".so"]
names = [name for name in names if name and ".so" in name]
folders = [get("LIBPL"), get("srcdir"), get("LIBDIR"), sys.exec_prefix,
           os.path.join(sys.exec_prefix, "lib"),
           os.path.join(os.path.dirname(os.path.dirname(sys.executable)), "lib")]


def loads(name):
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


sys.exit(not (any(map(loads, names)) or any(
    os.path.isfile(os.path.join(folder, name)) for folder in folders if folder for name in names)))
EOF
}

if ! command -v "$python" >/dev/null 2>&1; then
    missing="$missing python3-venv libpython3-dev"
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "Systolith needs Python 3.11 or later, not $("$python" --version 2>&1);" \
        "choose another one with: make PYTHON=..." >&2
    exit 1
else
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    # Debian's own Python has its parts in packages; any other must have been built with them.
    if "$python" -c 'import sys; sys.exit(sys.base_prefix != "/usr")'; then
        debian=yes
    else
        debian=no
    fi
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        if [ "$debian" = no ]; then
            echo "Systolith needs a Python with the modules venv and ensurepip, which $python lacks;" \
                "choose another one with: make PYTHON=..." >&2
            exit 1
        fi
        missing="$missing python$version-venv"
    fi
    if ! has_libpython; then
        if [ "$debian" = no ]; then
            echo "Systolith needs a Python with a shared library (configure --enable-shared), which" \
                "$python lacks; choose another one with: make PYTHON=..." >&2
            exit 1
        fi
        missing="$missing libpython$version"
    fi
fi

if [ -n "$missing" ]; then
    echo "Systolith needs these first; install them with:" >&2
    echo "  apt-get install -y$missing" >&2
    exit 1
fi
