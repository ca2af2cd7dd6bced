// Hopper's forward in fp32 on a processor, with its planes of bf16, held against fp64.
#include "emulated/warps.h"
// and then:
#include "emulated/hopper_fp32x3.h"

namespace dfa {
namespace {

using namespace emulated;

template <ForwardConfig kConfig>
void expect_right(const std::string& line) {
  for (const Timing asked : {kLate, kCrossed}) {
    const WithTiming with(asked);
    Tensors t(line, 5);
    expect_legal(kConfig, t.p);
    run_fp32x3_forward<kConfig>(t);
    expect_met(check_forward(t.p, t.forward_args()), line);
  }
}

constexpr auto kFp32 = DType::fp32;

TEST(EmulatedHopperFp32x3, OneStage) {
  constexpr auto kConfig = hopper_forward(kFp32, 64, 128, 80, 1, 1);
  expect_right<kConfig>("fwd fp32 causal b2 hq2 hk1 sq100 sk150 d64");
  expect_right<kConfig>("fwd fp32 b1 h1 sq129 sk81 d40 window(30,9) layout(bshd)");
}

TEST(EmulatedHopperFp32x3, TwoStages) {
  expect_right<hopper_forward(kFp32, 64, 192, 64, 2, 1)>("fwd fp32 causal b1 hq2 hk1 s260 d64");
  expect_right<hopper_forward(kFp32, 128, 64, 64, 1, 1)>("fwd fp32 b1 h1 sq65 sk130 d128");
}

}  // namespace
}  // namespace dfa
