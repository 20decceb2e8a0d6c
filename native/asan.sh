#!/usr/bin/env bash
# Runs tests with kafka_eos_native built for AddressSanitizer and UBSan: asan.sh PYTHON TESTS…
# Rule: any report ends the run. Leaks are not reported, because Python itself keeps memory until it ends; for those
# there is `python -m benchmarks.reading`.
set -euo pipefail
python=$1
shift
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
include=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
cc -std=gnu11 -g -O1 -Wall -Wextra -Werror -fno-omit-frame-pointer -fsanitize=address,undefined \
  -fno-sanitize-recover=undefined -fvisibility=hidden -shared -fPIC -I"$include" \
  native/kafka_eos_native.c -o "$home/kafka_eos_native.abi3.so"
# Python's own allocator would hide what is used after it was freed.
LD_PRELOAD="$(cc -print-file-name=libasan.so) $(cc -print-file-name=libubsan.so)" PYTHONMALLOC=malloc PYTHONPATH="$home" \
  ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 "$python" -m pytest -q -n 0 -p no:cacheprovider -k "not objects" --maxfail 1 "$@"
