#!/bin/sh
# Usage: tools/venv.sh PYTHON FOLDER
# Makes an empty virtual environment in FOLDER, on a machine that can also build a C extension for it.
# What the machine lacks is said in one line, with the command that brings it.
set -eu
python=$1
folder=$2
cc=${CC:-gcc}

fail() {
    echo "tlbprobe: $*" >&2
    exit 1
}

missing=
packages=
lacks() { # WHAT PACKAGES...
    missing="${missing:+$missing, }$1"
    shift
    packages="$packages $*"
}

# Debian's packages are named after its commands: python3-dev, python3.13-dev.
debian=${python##*/}
case $debian in python3*) ;; *) debian=python3 ;; esac

if ! "$python" -c '' 2>/dev/null; then
    [ "$python" = python3 ] || fail "there is no $python here; name one that is, as in: make PYTHON=python3"
    lacks Python python3 python3-dev python3-venv
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    fail "Python 3.11 or later is needed, and $python is $("$python" -V 2>&1);" \
        "name a later one, as in: make PYTHON=python3.13"
else
    "$python" -c 'import venv, ensurepip' 2>/dev/null || lacks "Python's venv module" "$debian-venv"
    header=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include") + "/Python.h")')
    [ -e "$header" ] || lacks "Python's headers (Python.h)" "$debian-dev"
fi

if ! command -v "$cc" >/dev/null; then
    lacks "the C compiler ($cc)" gcc libc6-dev
elif ! echo '#include <stdlib.h>' | "$cc" -E -x c - >/dev/null 2>&1; then
    lacks "the C library's headers (stdlib.h)" libc6-dev
fi

[ -z "$missing" ] || fail "this machine lacks $missing; on Debian, root gets it with: apt-get install$packages"

"$python" -m venv --clear "$folder"
