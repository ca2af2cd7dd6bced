#!/usr/bin/env bash
# Every test on a real device, each in a process of its own and several at a time: checks against fp64 take the processor's
# time, not the card's. Usage: tests/device/all.sh [DEVICE_TEST] [AT_ONCE]   exit 0 when some ran and all that ran passed
set -uo pipefail
program=${1:-build/ci/tests/device_test} at_once=${2:-$(($(nproc) / 2 + 1))}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

one() {  # FOLDER PROGRAM TEST: its log in the folder, then printed at once
  local log=$1/${3//\//_}.txt status=0
  "$2" --gtest_filter="$3" >"$log" 2>&1 || status=$?
  if ((status != 0)); then
    mv "$log" "$log.failed"
    log=$log.failed
    echo "exit $status" >>"$log"
  elif grep -q SKIPPED "$log"; then
    mv "$log" "$log.skipped"
    log=$log.skipped
  fi
  sed -n '/^\[ RUN/,/^\[ \+\(OK\|SKIPPED\|FAILED\) /p' "$log"
  ((status == 0)) || tail -n 1 "$log"
}
export -f one

"$program" --gtest_list_tests | awk '/^[^ ]+\.$/ {suite = $1; next} /^  / && suite {print suite $1}' |
  xargs -P "$at_once" -I{} bash -c 'one "$@"' _ "$folder" "$program" {}
count() { find "$folder" -name "*$1" | wc -l; }
echo "$(count .txt) tests passed, $(count .failed) failed, $(count .skipped) skipped, $SECONDS s"
(($(count .txt) > 0 && $(count .failed) == 0))
