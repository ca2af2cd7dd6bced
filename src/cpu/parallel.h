#pragma once

#include <cstdint>
#include <functional>

namespace dfa::cpu {

// Threads this process may use (its affinity mask), at least one.
int available_threads();

// Private cache of one core in bytes, 0 where the system does not tell.
long long l2_cache_bytes();

// Calls task(index, slot) for every index in [0, count) on at most `threads` threads. Indices are
// started in increasing order, one at a time, so put the longest tasks first. slot in [0, threads)
// is exclusive to the running task: it names its scratch. Exceptions of a task are rethrown.
void parallel_for(int threads, std::int64_t count,
                  const std::function<void(std::int64_t index, int slot)>& task);

}  // namespace dfa::cpu
