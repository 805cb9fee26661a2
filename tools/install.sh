#!/bin/sh
# Usage: tools/install.sh FOLDER ARGUMENTS...
# Runs pip install with these ARGUMENTS in the virtual environment in FOLDER. Success is silent, an index of
# packages that does not answer is said in one line, and of anything else that went wrong pip tells the story.
set -eu
folder=$1
shift
log=$folder/pip.log

if "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >"$log" 2>&1; then
    exit 0
fi
if grep -Eq 'connection broken by|Could not fetch URL|HTTP error|timed out' "$log"; then
    echo "tlbprobe: pip got no answer from its index of packages (see $log); connect to a network, or name" \
        "an index or a folder of wheels that is within reach in PIP_INDEX_URL or PIP_FIND_LINKS" >&2
else
    cat "$log" >&2
fi
exit 1
