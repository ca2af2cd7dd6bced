#include "cpu/cpuid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <set>
#include <sstream>
#include <string>

namespace dfa::cpu {
namespace {

std::set<std::string> kernels_flags() {
  std::ifstream file("/proc/cpuinfo");
  std::set<std::string> flags;
  for (std::string line; flags.empty() && std::getline(file, line);) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string word; words >> word;) flags.insert(word);
  }
  return flags;
}

// Whatever compiler built this: a level that is there and not found costs a factor of ten, in
// silence.
TEST(Cpuid, FindsWhatTheKernelLists) {
  const std::set<std::string> flags = kernels_flags();
  if (flags.empty()) GTEST_SKIP() << "/proc/cpuinfo lists no flags";
  const auto listed = [&](std::initializer_list<const char*> names) {
    return std::all_of(names.begin(), names.end(),
                       [&](const char* name) { return flags.count(name) != 0; });
  };
  const bool avx2 = listed({"avx2", "fma", "f16c"});
  const bool avx512 = avx2 && listed({"avx512f", "avx512bw", "avx512dq", "avx512vl"});
  EXPECT_EQ(has(Target::cpu_avx2).ok, avx2);
  EXPECT_EQ(has(Target::cpu_avx512).ok, avx512);
  EXPECT_EQ(has_avx512_bf16(), avx512 && listed({"avx512_bf16"}));
}

}  // namespace
}  // namespace dfa::cpu
