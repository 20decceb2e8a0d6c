#!/usr/bin/env bash
# Another release of one package, beside the environment: release.sh PYTHON PACKAGE VERSION prints the directory that
# holds it, for PYTHONPATH. Rule: what is there is whole; it is moved into place after the installation.
set -euo pipefail
python=$1 package=$2 version=$3
there=$PWD/.venv/releases/$package-$version
if [[ ! -d $there ]]; then
  rm -rf "$there.partial"
  echo "installing $package $version into $there" >&2
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$there.partial" "$package==$version"
  mv "$there.partial" "$there"
fi
echo "$there"
