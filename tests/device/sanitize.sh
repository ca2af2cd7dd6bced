#!/usr/bin/env bash
# compute-sanitizer over problems/sanitize.txt on the CUDA backend. Needs a GPU and the CUDA toolkit.
# Usage: tests/device/sanitize.sh [DEVICE_TEST]   exit 0 when every tool found nothing
set -uo pipefail
program=${1:-build/ci/tests/device_test}
failed=0
for tool in memcheck racecheck initcheck; do
  begin=$SECONDS
  if output=$(compute-sanitizer --tool "$tool" --error-exitcode 9 "$program" \
      --gtest_filter='*SmallProblemsMeetTheRule' 2>&1) &&
      ! grep -q SKIPPED <<<"$output"; then
    echo "$tool: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' <<<"$output" | sed 's/^=* *//'), $((SECONDS - begin)) s"
  else
    failed=1
    echo "$tool: FAILED"
    grep -vE '^\[|^$' <<<"$output" | head -40
  fi
done
exit $failed
