#include "cpu/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace dfa::cpu {
namespace {

void work_a_little() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

TEST(Parallel, EveryIndexRunsOnceOnAnyNumberOfThreads) {
  for (const int threads : {1, 2, 3, 8, 100}) {
    for (const std::int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(count));
      parallel_for(threads, count, [&](std::int64_t index, int slot) {
        ASSERT_GE(slot, 0);
        ASSERT_LT(slot, threads);
        ++calls.at(static_cast<std::size_t>(index));
      });
      for (const std::atomic<int>& n : calls) EXPECT_EQ(n, 1) << threads << " " << count;
    }
  }
}

TEST(Parallel, OneThreadRunsInOrderOnTheCaller) {
  std::vector<std::int64_t> seen;
  const auto caller = std::this_thread::get_id();
  parallel_for(1, 20, [&](std::int64_t index, int slot) {
    EXPECT_EQ(slot, 0);
    EXPECT_EQ(std::this_thread::get_id(), caller);
    seen.push_back(index);
  });
  ASSERT_EQ(seen.size(), 20u);
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], static_cast<std::int64_t>(i));
}

TEST(Parallel, NoIndexStartsLongBeforeAnEarlierOne) {
  constexpr int kThreads = 4;
  std::mutex mutex;
  std::vector<std::int64_t> starts;
  parallel_for(kThreads, 400, [&](std::int64_t index, int) {
    {
      const std::lock_guard lock(mutex);
      starts.push_back(index);
    }
    work_a_little();
  });
  ASSERT_EQ(starts.size(), 400u);
  // Between taking an index and recording it, each other thread may hold one smaller index back,
  // but a slot takes its own in increasing order, so few are missing at any time.
  std::vector<bool> started(400, false);
  std::int64_t least_missing = 0;
  for (const std::int64_t index : starts) {
    std::int64_t missing = 0;
    for (std::int64_t i = least_missing; i < index; ++i) {
      missing += started[static_cast<std::size_t>(i)] ? 0 : 1;
    }
    EXPECT_LT(missing, kThreads) << "before index " << index;
    started[static_cast<std::size_t>(index)] = true;
    while (least_missing < 400 && started[static_cast<std::size_t>(least_missing)]) ++least_missing;
  }
}

TEST(Parallel, ASlotBelongsToOneTaskAtATime) {
  constexpr int kThreads = 8;
  std::vector<std::atomic<int>> users(kThreads);
  std::vector<long> scratch(kThreads, 0);  // not atomic: the thread sanitizer watches it
  std::atomic<int> clashes{0};
  parallel_for(kThreads, 500, [&](std::int64_t, int slot) {
    const auto at = static_cast<std::size_t>(slot);
    if (users[at].fetch_add(1) != 0) ++clashes;
    ++scratch[at];
    work_a_little();
    users[at].fetch_sub(1);
  });
  EXPECT_EQ(clashes, 0);
  long total = 0;
  for (const long n : scratch) total += n;
  EXPECT_EQ(total, 500);
}

TEST(Parallel, TwoCallersAtOnceHaveTheirOwnSlots) {
  const auto sum_of = [](long* total) {
    std::vector<long> sums(4, 0);
    parallel_for(4, 1000, [&](std::int64_t index, int slot) {
      sums[static_cast<std::size_t>(slot)] += index;
    });
    *total = sums[0] + sums[1] + sums[2] + sums[3];
  };
  long one = 0, two = 0;
  std::thread other(sum_of, &two);
  sum_of(&one);
  other.join();
  EXPECT_EQ(one, 499500);
  EXPECT_EQ(two, 499500);
}

TEST(Parallel, AnExceptionOfATaskReachesTheCaller) {
  for (const int threads : {1, 2, 4}) {
    std::string what;
    try {
      parallel_for(threads, 100, [](std::int64_t index, int) {
        if (index == 37) throw std::runtime_error("task 37");
      });
    } catch (const std::runtime_error& error) {
      what = error.what();
    }
    EXPECT_EQ(what, "task 37") << threads;

    std::atomic<int> calls{0};
    parallel_for(threads, 10, [&](std::int64_t, int) { ++calls; });
    EXPECT_EQ(calls, 10) << "after an exception on " << threads;
  }
}

TEST(Parallel, ThereIsAtLeastOneThread) {
  EXPECT_GE(available_threads(), 1);
  EXPECT_GE(l2_cache_bytes(), 0);
}

}  // namespace
}  // namespace dfa::cpu
