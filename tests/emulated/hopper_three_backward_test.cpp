// Hopper's backward by three warpgroups with keys on a processor: its own source, against fp64.
#include "emulated/hopper_backward.h"
// and then:
#include "kernels/backward/sm90_three_backward.cuh"

namespace dfa {
namespace {

using namespace emulated;

constexpr Timing kLateCopies{.late_copies = true};

constexpr BackwardConfig three(DType element) {
  return {.target = Target::cuda_sm90,
          .element = element,
          .head_dim = 64,
          .value_dim = 64,
          .block_q = 192,
          .block_k = 192,
          .warps = 12,
          .stages = 2,
          .ctas = 1,
          .dq = DqSum::unordered,
          .dq_block_q = 192};
}

template <BackwardConfig kConfig>
void expect_right(const std::string& line) {
  expect_gradients<kConfig>(
      line, {kEager, kLateCopies, kLate, kCrossed},
      [](const Sm90BackwardArgs& args) { sm90_three_backward<kConfig>(args); });
}

constexpr BackwardConfig kBf16 = three(DType::bf16), kFp16 = three(DType::fp16);

TEST(EmulatedHopperThreeBackward, EdgesOfTiles) {
  expect_right<kBf16>("bwd bf16 b1 h1 s1 d64");
  for (const int sq : {63, 65, 191, 192, 193}) {
    for (const int sk : {64, 129, 192, 193}) {
      const std::string lengths = " sq" + std::to_string(sq) + " sk" + std::to_string(sk);
      expect_right<kBf16>("bwd bf16 b1 h1" + lengths + " d64");
      expect_right<kBf16>("bwd bf16 causal b1 h1" + lengths + " d64");
    }
  }
}

TEST(EmulatedHopperThreeBackward, MasksGroupsAndLayouts) {
  expect_right<kBf16>("bwd bf16 causal b1 h1 s700 d64");
  expect_right<kBf16>("bwd bf16 causal b1 h1 sq500 sk200 d64");  // rows without a key
  expect_right<kBf16>("bwd bf16 b1 h1 s700 d64 window(33,65)");
  expect_right<kBf16>("bwd bf16 b1 h1 sq700 sk100 d64 window(9,9)");
  expect_right<kBf16>("bwd bf16 causal b2 hq3 hk1 s330 d64");
  expect_right<kBf16>("bwd bf16 b1 hq4 hk2 sq270 sk440 d48 dv40 layout(bshd)");
  expect_right<kFp16>("bwd fp16 causal b1 h11 s430 d64");  // more heads than at once
}

}  // namespace
}  // namespace dfa
