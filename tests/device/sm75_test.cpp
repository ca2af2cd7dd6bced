// The kernels of compute capability 7.5, forced on whatever device is here: its instructions and
// its shared memory, compiled for the device.
#include "device/device_case.h"

namespace dfa {
namespace {

using Sm75 = DeviceTest;

const PlanOptions kForced{
    .backend = "cuda", .algorithm = Algorithm::flash, .config = "target=cuda_sm75"};

bool checked_sm75(const std::string& line, std::uint64_t seed) {
  return checked(line, seed, kForced);
}

// bf16 and tf32 lines run as fp16 and fp32. A backward in fp32 at d 256 does not fit.
TEST_F(Sm75, EveryProblemOfTheFilesMeetsTheRule) {
  int ran = 0;
  std::uint64_t seed = 0;
  for (const char* file : {"regressions.txt", "test_quick.txt", "gpu.txt"}) {
    for (std::string line : problem_lines(file)) {
      for (const auto& [from, to] : {std::pair{"bf16", "fp16"}, {"tf32", "fp32"}}) {
        if (const auto at = line.find(from); at != std::string::npos) line.replace(at, 4, to);
      }
      const Problem p = parse_problem(line);
      if (p.dtype == DType::fp32 && p.pass != Pass::forward && std::max(p.d, p.dv) > 128) continue;
      ran += checked_sm75(line, ++seed);
    }
  }
  std::printf("%d problems ran\n", ran);
  EXPECT_GE(ran, 50);
}

TEST_F(Sm75, EveryHeadDimMeetsTheRule) {
  for (const int d : {8, 32, 64, 96, 128, 192, 256}) {
    const std::string shape = " causal b1 hq4 hk2 sq150 sk170 d" + std::to_string(d);
    EXPECT_TRUE(checked_sm75("fwdbwd fp16" + shape, 5));
    EXPECT_TRUE(checked_sm75((d > 192 ? "fwd fp32" : "fwdbwd fp32") + shape, 6));
  }
}

TEST_F(Sm75, RunsGiveTheSameBits) {
  expect_same_bits("fwdbwd fp16 causal b2 hq8 hk2 s1000 d64", kForced, 200);
  expect_same_bits("fwdbwd fp32 b1 h4 sq333 sk777 d128", kForced, 100);
}

}  // namespace
}  // namespace dfa
