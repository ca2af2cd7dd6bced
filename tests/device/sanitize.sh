#!/usr/bin/env bash
# compute-sanitizer over problems/sanitize.txt on the CUDA backend. Needs a GPU and the CUDA toolkit.
# Usage: tests/device/sanitize.sh [DEVICE_TEST]   exit 0 when every tool found nothing
# SANITIZE_TOOLS and SANITIZE_FILTER ask for fewer tools and tests.
set -uo pipefail
program=${1:-build/ci/tests/device_test}
failed=0

# Of a report: a line for each kernel, what was found in it, and how often. Of races: which accesses.
found() {
  sed -nE 's/^=+ +//; /^(Error|Warning|Invalid|Uninitialized|Program hit|Barrier|Race|and |at .*\()/p' |
    awk '{
      kernel = match($0, /[a-z0-9_]+<dfa::[A-Za-z]+(\{[^}]*\}|::[a-z0-9]+|[^>]*)*>|dfa::[a-z0-9_]+/) ? substr($0, RSTART, RLENGTH) : ""
      gsub(/\(dfa::[A-Za-z]+\)|\(int\)|\(bool\)|dfa::/, "", kernel)
      if ($1 == "Error:" && /Race/) { first = $5; first_at = substr($0, match($0, /\+0x[0-9a-f]+/), RLENGTH); next }
      if ($1 == "and") {
        times = match($0, /\[[0-9]+ hazards\]/) ? substr($0, RSTART + 1, RLENGTH - 10) : 1
        key = kernel ": " tolower(first) " against " tolower($2)
        pairs[key]++; hazards[key] += times
        if (pairs[key] <= 4) places[key] = places[key] " " first_at "/" substr($0, match($0, /\+0x[0-9a-f]+/), RLENGTH)
        next
      }
      if (kernel != "") { key = last " in " kernel; pairs[key]++; next }
      last = substr($0, 1, 90)
    }
    END { for (key in pairs) print key ", " pairs[key] " pairs of places, " hazards[key] + 0 " hazards" (places[key] == "" ? "" : ", first" places[key]) }' | sort
}

passed() { sed -nE 's/^\[  PASSED  \] ([0-9]+) tests?\.$/\1/p'; }

for tool in ${SANITIZE_TOOLS:-memcheck racecheck initcheck}; do
  begin=$SECONDS
  if output=$(compute-sanitizer --tool "$tool" --error-exitcode 9 "$program" \
      --gtest_filter="${SANITIZE_FILTER:-*SmallProblemsMeetTheRule}" 2>&1) &&
      ! grep -q SKIPPED <<<"$output" && (($(passed <<<"$output") + 0 > 0)); then
    echo "$tool: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' <<<"$output" | sed 's/^=* *//'), $(passed <<<"$output") tests, $((SECONDS - begin)) s"
  else
    failed=1
    echo "$tool: FAILED, $((SECONDS - begin)) s"
    found <<<"$output" | head -40
    grep -E 'SUMMARY|FAILED|SKIPPED|repro' <<<"$output" | head -20
  fi
done
exit $failed
