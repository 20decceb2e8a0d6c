#!/usr/bin/env bash
# Makes the S3 server that the tests of checkpoint storage use: a pinned versitygw, once a machine.
# Rule: it takes Go. Without, or if the build fails, those tests are skipped and say so; nothing else depends on it.
set -euo pipefail
version=1.8.0
home=${KAFKA_EOS_CACHE_DIR:-$HOME/.cache/kafka-eos}/versitygw-$version

if [[ -x $home/versitygw ]] || ! command -v go >/dev/null; then
  exit 0
fi
echo "building versitygw $version into $home for the tests on S3 (some minutes the first time)" >&2
if ! GOBIN=$home timeout 600 go install "github.com/versity/versitygw/cmd/versitygw@v$version" >&2; then
  echo "versitygw could not be built: the tests on S3 are skipped" >&2
fi
