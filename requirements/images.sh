#!/usr/bin/env bash
# Asks the registries for the digests of the images in docker/, and writes them to the file $1. Rule: the file has a
# digest for each image, or it stays as it was. It is not part of the repository, because a base changes with each
# security fix: who deploys an image keeps the file with it.
set -euo pipefail
target=$1
images=(
  PYTHON_IMAGE=python:3.13-slim
  KAFKA_IMAGE=apache/kafka:4.3.0
  PROMETHEUS_IMAGE=prom/prometheus:v3.5.0
  GRAFANA_IMAGE=grafana/grafana:12.1.0
)
found=$(mktemp)
trap 'rm -f "$found"' EXIT
for line in "${images[@]}"; do
  digest=$(docker buildx imagetools inspect "${line#*=}" --format '{{.Manifest.Digest}}')
  [[ $digest =~ ^sha256:[0-9a-f]{64}$ ]] || { echo "${line#*=}: the registry gave no digest, but: $digest" >&2; exit 1; }
  echo "$line@$digest" >> "$found"
done
mkdir -p "$(dirname "$target")"
cp "$found" "$target"
cat "$target"
