// Hopper's own backward with dropout on a processor, of warpgroups that have both gradients of
// their keys: its own source, held against fp64.
#include "emulated/hopper_backward_variants.h"

namespace dfa {
namespace {

using namespace emulated;

// Whose warpgroups have both gradients of their keys.
constexpr BackwardConfig narrow(int dim, int cluster = 1, DqAccumulation dq = serialized,
                                bool persistent = false, bool masked = false) {
  BackwardConfig with = config(kBf16, dim, kDropout, cluster, dq, persistent);
  with.block_q = dim > 64 ? 64 : 128;
  with.block_k = 128;
  with.masked = masked;
  return with;
}

TEST(EmulatedHopperDropoutBackward, NarrowHeads) {
  expect_right_everywhere<narrow(64)>();
  expect_right_everywhere<narrow(64, 2, atomic, true, true)>();
}

// Draws are made a step ahead there.
TEST(EmulatedHopperDropoutBackward, MoreColumns) {
  expect_right_everywhere<narrow(128, 2, atomic_fused, true, true)>();
  expect_right_everywhere<narrow(128)>();
  expect_right_at_edges<narrow(96, 2, serialized_fused, true)>();
}

TEST(EmulatedHopperDropoutBackward, PackedSequencesAndChunks) {
  const std::string lens = "hq4 hk2 lens(70,1,0,130,65) lens_k(150,1,9,129,0)";
  constexpr auto kPair = packed(narrow(64, 2, atomic, false, true));
  expect_right<kPair>("bwd bf16 causal " + lens + said<kPair>());
  constexpr auto kBlock = packed(narrow(128, 1, atomic));
  expect_right<kBlock>("bwd bf16 " + lens + said<kBlock>());
  constexpr auto kRanges = ranges(narrow(128, 2, atomic, false, true));
  expect_right<kRanges>("bwd bf16 causal b1 hq2 hk1 s200 chunk(48)" + said<kRanges>());
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperDropoutBackward, OtherGrids) {
  expect_right_everywhere<narrow(64, 2, serialized)>();
  expect_right_everywhere<narrow(64, 2, serialized, true)>();
  expect_right_everywhere<narrow(64, 1, serialized_fused)>();
  expect_right_everywhere<narrow(64, 2, atomic, false, true)>();
  expect_right_everywhere<narrow(128, 2, serialized_fused, true, true)>();
  expect_right_everywhere<narrow(128, 1, atomic)>();
}
#endif

}  // namespace
}  // namespace dfa
