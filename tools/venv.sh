#!/bin/sh
# Makes a virtual environment at $1 with the first Python >= 3.11 on the path.
set -eu
for python in python3 python3.11 python3.12 python3.13 python3.14; do
  if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    exec "$python" -m venv "$1"
  fi
done
echo "no Python >= 3.11 on the path; install one, e.g. apt-get install python3 python3-venv" >&2
exit 1
