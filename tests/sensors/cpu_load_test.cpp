#include "sensors/cpu_load.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "temp_dir.h"

namespace dfa::sensors {
namespace {

TEST(CpuLoad, ReadsBusyAndAllProcessorTime) {
  testing::TempDir tree;
  tree.write("proc/stat", "cpu  10 20 30 400 5 6 7 8 0 0\ncpu0 1 2 3 4\n");
  const auto seconds = read_cpu_seconds({.proc = tree.path() / "proc"});
  ASSERT_TRUE(seconds);
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  EXPECT_DOUBLE_EQ(seconds->busy, 81 / ticks);
  EXPECT_DOUBLE_EQ(seconds->total, 486 / ticks);
  EXPECT_FALSE(read_cpu_seconds({.proc = tree.path() / "none"}));
}

TEST(CpuLoad, OthersHaveWhatIsBusyAndNotOurs) {
  const CpuSeconds before{100, 1000, 5};
  EXPECT_DOUBLE_EQ(other_load_pct(before, {107, 1010, 9}).value(), 30);
  EXPECT_DOUBLE_EQ(other_load_pct(before, {103, 1010, 9}).value(), 0);  // ticks are coarse
  EXPECT_FALSE(other_load_pct(before, before));
}

}  // namespace
}  // namespace dfa::sensors
