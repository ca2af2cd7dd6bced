// The emulation is deaf to one kind of wait or fence at a time: Hopper's kernels then come out
// wrong, so that their tests see it where one is missing.
#include "emulated/deaf.h"
#include "emulated/hopper_backward.h"
// and then:
#include "kernels/backward/sm90_backward.cuh"
#include "kernels/forward/sm90_forward.cuh"

namespace dfa {
namespace {

using namespace emulated;

bool forward_is_wrong(Timing asked, Deaf to) {
  return is_wrong(asked, to, [] {
    constexpr auto kConfig = hopper_forward(DType::fp16, 64, 128, 64, 2, 2);
    Tensors t("fwd fp16 b1 h2 sq200 sk500 d64", 5);
    const auto args = cuda::HopperForwardArgs(t.p, kConfig).with(t.forward_args(), 1);
    launch(1, kConfig.threads(), [&] { sm90_forward<kConfig>(args); });
    return check_forward(t.p, t.forward_args());
  });
}

bool pairs_are_wrong(Timing asked, Deaf to) {
  return is_wrong(asked, to, [] {
    constexpr auto kConfig = hopper_forward(DType::bf16, 64, 64, 64, 2, 1, false, 2);
    Tensors t("fwd bf16 b1 h2 sq200 sk300 d64", 5);
    const auto args = cuda::HopperForwardArgs(t.p, kConfig).with(t.forward_args(), 2);
    launch(
        2, kConfig.threads(), [&] { sm90_forward<kConfig>(args); }, 2);
    return check_forward(t.p, t.forward_args());
  });
}

bool backward_is_wrong(Timing asked, Deaf to) {
  static constexpr BackwardConfig kConfig{.target = Target::cuda_sm90,
                                          .element = DType::bf16,
                                          .block_q = 128,
                                          .block_k = 128,
                                          .warps = 8,
                                          .ctas = 1,
                                          .dq = DqAccumulation::serialized};
  Tensors t = with_forward("bwd bf16 b1 h1 sq500 sk200 d64");
  return is_wrong(asked, to, [&] {
    run_backward<kConfig>(t, [](const Sm90BackwardArgs& args) { sm90_backward<kConfig>(args); });
    return check_backward(t.p, t.backward_args());
  });
}

TEST(EmulatedHopperFaults, NothingIsWrongWithoutOne) {
  for (const Timing asked : {kEager, kLate, kCrossed}) {
    EXPECT_FALSE(forward_is_wrong(asked, {}));
    EXPECT_FALSE(pairs_are_wrong(asked, {}));
    EXPECT_FALSE(backward_is_wrong(asked, {}));
  }
}

TEST(EmulatedHopperFaults, WaitsForCopiesAndForEmptyStages) {
  for (const Timing asked : {kLate, kCrossed}) {
    EXPECT_TRUE(forward_is_wrong(asked, {.phases = true}));
    EXPECT_TRUE(pairs_are_wrong(asked, {.phases = true}));
    EXPECT_TRUE(backward_is_wrong(asked, {.phases = true}));
  }
}

TEST(EmulatedHopperFaults, FencesBeforeCopiesAndProductsRead) {
  EXPECT_TRUE(forward_is_wrong(kCrossed, {.fences = true}));
  EXPECT_TRUE(backward_is_wrong(kCrossed, {.fences = true}));
}

TEST(EmulatedHopperFaults, MeetingsOfWarpgroups) {
  EXPECT_TRUE(backward_is_wrong(kCrossed, {.named_barriers = true}));
  EXPECT_TRUE(backward_is_wrong(kEager, {.named_barriers = true}));
}

// Before the first arrival at the other's barriers, and after the last.
TEST(EmulatedHopperFaults, MeetingsOfClusters) {
  EXPECT_TRUE(pairs_are_wrong(kEager, {.clusters = true}));
}

TEST(EmulatedHopperFaults, WaitsForStores) {
  EXPECT_TRUE(forward_is_wrong(kLate, {.stores = true}));
  EXPECT_TRUE(backward_is_wrong(kLate, {.stores = true}));
}

}  // namespace
}  // namespace dfa
