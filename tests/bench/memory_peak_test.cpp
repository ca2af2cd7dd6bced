#include "bench/memory_peak.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "sensors/fakes.h"

namespace dfa::bench {
namespace {

constexpr std::size_t kBytes = 64 << 20;

TEST(MemoryPeak, SeesWhatTheBodyTouchedEvenThoughItWasFreed) {
  const MemoryGrowth growth = measure_growth([] {
    const auto memory = std::make_unique<char[]>(kBytes);
    std::memset(memory.get(), 1, kBytes);
    asm volatile("" : : "r"(memory.get()) : "memory");  // so that it is not optimised away
  });
  if (!growth.bytes) GTEST_SKIP() << growth.reason;
  EXPECT_NEAR(static_cast<double>(*growth.bytes), static_cast<double>(kBytes), 2e6);
}

TEST(MemoryPeak, WhereTheKernelDoesNotTellTheBodyStillRunsAndThereIsAReason) {
  dfa::testing::FakeTree tree;
  bool ran = false;
  const MemoryGrowth growth = measure_growth([&] { ran = true; }, tree.root());
  EXPECT_TRUE(ran);
  EXPECT_FALSE(growth.bytes);
  EXPECT_NE(growth.reason.find("clear_refs"), std::string::npos);
}

}  // namespace
}  // namespace dfa::bench
