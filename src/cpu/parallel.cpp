#include "cpu/parallel.h"

#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

namespace dfa::cpu {

long long l2_cache_bytes() { return std::max(0L, ::sysconf(_SC_LEVEL2_CACHE_SIZE)); }

int available_threads() { return std::max(1, oneapi::tbb::info::default_concurrency()); }

void parallel_for(int threads, std::int64_t count,
                  const std::function<void(std::int64_t index, int slot)>& task) {
  const int workers = static_cast<int>(std::min<std::int64_t>(threads, count));
  std::atomic<std::int64_t> next{0};
  // One long-lived loop per worker that takes the next index: longest-first order is kept, and the
  // worker's number is its slot. The order of `next` hands data to the workers and back; TBB does
  // so too, but where the thread sanitizer cannot see it.
  const auto work = [&](int slot) {
    for (std::int64_t index; (index = next.fetch_add(1, std::memory_order_acq_rel)) < count;) {
      task(index, slot);
    }
  };
  if (workers <= 1) {
    if (count > 0) work(0);
    return;
  }
  next.store(0, std::memory_order_release);
  // More loops than processors take turns; TBB would warn about an arena that large.
  oneapi::tbb::task_arena arena(std::min(workers, available_threads()));
  arena.execute(
      [&] { oneapi::tbb::parallel_for(0, workers, work, oneapi::tbb::simple_partitioner{}); });
  next.load(std::memory_order_acquire);
}

}  // namespace dfa::cpu
