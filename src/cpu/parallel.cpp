#include "cpu/parallel.h"

#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

// oneTBB comes without instrumentation, so the thread sanitizer sees neither its threads wait for
// one another nor why they may share its objects. This file then goes without as well
// (CMakeLists.txt) and states the order itself: what the caller did comes before every task, all
// tasks before what the caller does next. Tasks stay instrumented, and unordered among themselves.
#ifdef DFA_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace dfa::cpu {
namespace {

#ifdef DFA_THREAD_SANITIZER
void hand_over(void* at) { __tsan_release(at); }
void take_over(void* at) { __tsan_acquire(at); }
#else
void hand_over(void*) {}
void take_over(void*) {}
#endif

// What a block does last, however it ends.
struct AtEnd {
  void (*act)(void*);
  void* at;
  ~AtEnd() { act(at); }
};

}  // namespace

long long l2_cache_bytes() { return std::max(0L, ::sysconf(_SC_LEVEL2_CACHE_SIZE)); }

int available_threads() { return std::max(1, oneapi::tbb::info::default_concurrency()); }

void parallel_for(int threads, std::int64_t count,
                  const std::function<void(std::int64_t index, int slot)>& task) {
  const int workers = static_cast<int>(std::min<std::int64_t>(threads, count));
  std::atomic<std::int64_t> next{0};
  // One long-lived loop per worker that takes the next index: longest-first order is kept, and the
  // worker's number is its slot.
  const auto work = [&](int slot) {
    take_over(&next);
    const AtEnd end{hand_over, &next};
    for (std::int64_t index; (index = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      task(index, slot);
    }
  };
  if (workers <= 1) {
    if (count > 0) work(0);
    return;
  }
  hand_over(&next);
  const AtEnd end{take_over, &next};
  // More loops than processors take turns; TBB would warn about an arena that large.
  oneapi::tbb::task_arena arena(std::min(workers, available_threads()));
  arena.execute(
      [&] { oneapi::tbb::parallel_for(0, workers, work, oneapi::tbb::simple_partitioner{}); });
}

}  // namespace dfa::cpu
