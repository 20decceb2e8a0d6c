#!/usr/bin/env bash
# Makes the environment: install.sh VENV STAMP.
# Rule: the stamp names what is installed and is written last. Equal stamp, nothing to do; anything else, install.
set -euo pipefail
venv=$1 stamp=$2

# A name on the PATH may be a launcher that runs nothing: only what runs, is new enough and can make a venv counts.
usable() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
  local name
  for name in ${PYTHON:-} python3.13 python3.12 python3.11 python3; do
    if usable "$name"; then
      echo "$name"
      return
    fi
  done
  echo "make: no Python 3.11 or newer with venv was found (tried ${PYTHON:-}${PYTHON:+ }python3.13 python3.12" \
    "python3.11 python3). Install one (Debian, Ubuntu: apt-get install python3 python3-venv) or name it: PYTHON=/path/to/python make" >&2
  return 1
}

wanted() {
  "$venv/bin/python" -c 'import sys; print(sys.version)'
  pwd # an editable install points here
  cat requirements/dev.txt pyproject.toml requirements/install.sh native/pyproject.toml native/setup.py native/*.c
}

up_to_date() {
  [[ -x $venv/bin/python && -f $stamp && $(<"$stamp") == "$(wanted | sha256sum)" ]]
}

with_pip() {
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes "$@"
}

# uv reads neither pip's configuration nor its cache, and has no wheel for some machines: pip is there for those.
# Other than pip it leaves compiling to whoever imports; with PYTHONDONTWRITEBYTECODE every process did it again.
with_uv() {
  with_pip -r requirements/uv.txt && "$venv/bin/uv" pip install --quiet --compile-bytecode --python "$venv/bin/python" --require-hashes "$@"
}

if up_to_date; then
  exit 0
fi
rm -f "$stamp"
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then # none yet, or one that was interrupted while it was made
  python=$(find_python)
  echo "making $venv with $("$python" --version)" >&2
  rm -rf "$venv"
  "$python" -m venv "$venv"
fi
echo "installing requirements/dev.txt into $venv (a minute or two the first time)" >&2
if ! with_uv -r requirements/dev.txt; then
  echo "make: uv could not do it; now pip, which takes twice as long" >&2
  with_pip -r requirements/dev.txt
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
# Readers and writers work without it, and the head of a test run says so. It needs a C compiler and the headers of Python.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation ./native ||
  echo "make: kafka-eos-native could not be built; records are read and written one by one by confluent-kafka" >&2
wanted | sha256sum >"$stamp.new"
mv "$stamp.new" "$stamp"
