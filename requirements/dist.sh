#!/usr/bin/env bash
# Builds what a release publishes, and tries it: dist.sh PYTHON DIRECTORY [--demo].
# Rule: what is tried is the wheel, in an environment of its own with the pinned packages, away from this checkout.
set -euo pipefail
python=$1 directory=$2 demo=${3:-}
here=$PWD
rm -rf "$directory"/kafka_eos-* "$directory"/kafka_eos_native-*
"$python" -m build --no-isolation --outdir "$directory" . >/dev/null
"$python" -m build --no-isolation --outdir "$directory" native >/dev/null

home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
"$python" -m venv "$home/twine"
"$home/twine/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/twine.txt
"$home/twine/bin/python" -m twine check --strict "$directory"/kafka_eos-* "$directory"/kafka_eos_native-*

"$python" -m venv "$home/env"
"$home/env/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/run.txt
"$home/env/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$directory"/kafka_eos-*.whl \
  "$directory"/kafka_eos_native-*.whl
cd "$home"
"$home/env/bin/python" -m pip check
"$home/env/bin/kafka-eos" --version
if [[ $demo == --demo ]]; then
  "$home/env/bin/kafka-eos" demo --orders 50000
fi
echo "built and tried: $(cd "$here" && ls "$directory"/kafka_eos-* "$directory"/kafka_eos_native-*)"
