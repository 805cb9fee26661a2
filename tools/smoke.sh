#!/bin/sh
# Usage: tools/smoke.sh PYTHON SDIST
# On every CPython from 3.11 on that this machine has and whose version is not PYTHON's: installs the SDIST
# as a user would, measures once, and runs the tests that are marked smoke.
set -eu
sdist=$2
version='import sys
v = sys.version_info
if sys.implementation.name == "cpython" and v >= (3, 11) and v.releaselevel == "final": print("%d.%d" % v[:2])'
done=" $("$1" -c "$version") "

# pyenv puts only some of its Pythons on the PATH, and commands there that say no for all the others.
for python in python3 $(seq -f python3.%g 11 30) "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python; do
    name=$("$python" -c "$version" 2>/dev/null) || continue
    [ -n "$name" ] || continue
    case $done in *" $name "*) continue ;; esac
    done="$done$name "

    echo "Smoke test on Python $name ($python)"
    venv=build/smoke-$name
    tools/venv.sh "$python" "$venv"
    tools/install.sh "$venv" "$sdist[test]"
    "$venv/bin/tlbprobe" chase 1MiB --max-seconds 0.2
    PYTHONSAFEPATH=1 "$venv/bin/pytest" -m smoke
done
echo "Installed and tried on Python${done% }"
