#!/usr/bin/env bash
# Makes the helm that the tests of the chart use, once a machine. Rule: it takes Go; without it those tests are skipped.
set -euo pipefail
version=3.18.4
home=${KAFKA_EOS_CACHE_DIR:-$HOME/.cache/kafka-eos}/helm-$version

[[ -x $home/helm ]] && exit 0
echo "building helm $version into $home (some minutes the first time)" >&2
GOBIN=$home go install "helm.sh/helm/v3/cmd/helm@v$version"
