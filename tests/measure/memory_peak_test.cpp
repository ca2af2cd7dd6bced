#include "measure/memory_peak.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

#include "temp_dir.h"

namespace dfa::measure {
namespace {

constexpr std::size_t kBytes = 64 << 20;

TEST(MemoryPeak, SeesWhatTheBodyTouchedEvenThoughItWasFreed) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer's shadow memory counts as resident";
#endif
  const MemoryGrowth growth = measure_growth([] {
    // mmap, as a sanitizer's allocator keeps what was freed
    void* memory =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    std::memset(memory, 1, kBytes);
    ::munmap(memory, kBytes);
  });
  if (!growth.bytes) GTEST_SKIP() << growth.reason;
  EXPECT_NEAR(static_cast<double>(*growth.bytes), static_cast<double>(kBytes), 2e6);
}

TEST(MemoryPeak, WhereTheKernelDoesNotTellTheBodyStillRunsAndThereIsAReason) {
  dfa::testing::TempDir tree;
  bool ran = false;
  const MemoryGrowth growth = measure_growth([&] { ran = true; }, tree.path());
  EXPECT_TRUE(ran);
  EXPECT_FALSE(growth.bytes);
  EXPECT_NE(growth.reason.find("clear_refs"), std::string::npos);
}

}  // namespace
}  // namespace dfa::measure
