// Chunked and prefix masks by Hopper's own kernels: their source on a processor, held against fp64.
#include "emulated/hopper_backward.h"
#include "emulated/hopper_forward.h"
// and then:
#include "kernels/backward/sm90_backward.cuh"
#include "kernels/backward/sm90_pair_backward.cuh"
#include "kernels/backward/sm90_wide_backward.cuh"

namespace dfa {
namespace {

using namespace emulated;

constexpr auto kBf16 = DType::bf16, kFp16 = DType::fp16;

// Chunks that end inside tiles, at their edges, and behind all keys; those of the first keys are
// cut where there are fewer queries, or more. Prefixes likewise, and more heads than fill a row.
constexpr const char* kMasks[] = {
    "chunk(100) causal b1 hq4 hk2 s300",
    "chunk(64) causal b1 h1 sq130 sk300",
    "chunk(128) causal b1 hq2 hk1 sq290 sk200",
    "chunk(1000) causal b1 h1 s150",
    "chunk(7) causal b1 h1 s140",
    "chunk(90) b1 h1 s260",
    "chunk(96) window(70,0) b2 hq2 hk1 s250 scale(-0.3)",
    "prefix(100) causal b1 hq4 hk2 s300",
    "prefix(64) causal b1 h1 sq130 sk300",
    "prefix(150) causal b1 h1 sq290 sk200",
    "prefix(1000) causal b1 h1 s150",
};

TEST(EmulatedHopperRanges, Forward) {
  for (const char* rest : kMasks) {
    expect_right<ranges(hopper_forward(kBf16, 64, 128, 64, 2, 2))>(
        forward_line<hopper_forward(kBf16, 64, 128, 64, 2, 2)>(rest));
    expect_right<ranges(hopper_forward(kFp16, 128, 64, 80, 2, 1))>(
        forward_line<hopper_forward(kFp16, 128, 64, 80, 2, 1)>(rest));
  }
}

#ifdef DFA_EVERY_CASE
// In pairs, in turns, with heads that are rows of a tile, and in splits of the keys.
TEST(EmulatedHopperRanges, ForwardOfOtherTiles) {
  constexpr auto kPair = ranges(hopper_forward(kBf16, 128, 64, 64, 2, 1, false, 2));
  constexpr auto kTurns = ranges(hopper_forward(kBf16, 64, 128, 128, 2, 2, true));
  constexpr auto kPacked = [] {
    ForwardConfig c = ranges(hopper_forward(kBf16, 64, 128, 64, 2, 2));
    c.pack_gqa = 2;
    return c;
  }();
  constexpr auto kSplits = [] {
    ForwardConfig c = ranges(hopper_forward(kFp16, 128, 64, 64, 2, 1));
    c.num_splits = 3;
    return c;
  }();
  for (const char* rest : {kMasks[0], kMasks[1], kMasks[6], kMasks[7]}) {
    expect_right<kPair>(forward_line<kPair>(rest));
    expect_right<kTurns>(forward_line<kTurns>(rest));
    expect_right<kSplits>(forward_line<kSplits>(rest));
  }
  for (const char* rest : {kMasks[0], kMasks[6], kMasks[7]}) {
    expect_right<kPacked>(forward_line<kPacked>(rest));
  }
}
#endif

TEST(EmulatedHopperRanges, ForwardWithLogits) {
  constexpr auto kAll =
      ranges(with_logits(hopper_forward(kBf16, 64, 128, 64, 2, 2), kSoftcap | kAlibi | kSink));
  for (const char* rest : {kMasks[0], kMasks[2], kMasks[7]}) {
    expect_right<kAll>(forward_line<kAll>(rest) + " softcap(9) alibi sink");
  }
}

constexpr BackwardConfig backward(DType element, int dim, int cluster = 1, bool masked = false) {
  const bool wide = dim > 128;
  return {.target = Target::cuda_sm90,
          .element = element,
          .head_dim = dim,
          .value_dim = dim,
          .block_q = dim > 64 ? 64 : 128,
          .block_k = wide ? 64 : 128,
          .warps = 8,
          .stages = 2,
          .ctas = 1,
          .dq = DqAccumulation::atomic,
          .cluster = cluster,
          .masked = masked,
          .ranges = true};
}

template <BackwardConfig kConfig>
void expect_backward(const std::string& rest) {
  const std::string line = std::string("bwd ") + name_of(kConfig.element) + " " + rest + " d" +
                           std::to_string(kConfig.head_dim);
  expect_gradients<kConfig>(line, {kLate, kCrossed}, [](const Sm90BackwardArgs& args) {
    if constexpr (kConfig.head_dim > 128) {
      sm90_wide_backward<kConfig>(args);
    } else if constexpr (kConfig.cluster > 1) {
      sm90_pair_backward<kConfig>(args);
    } else {
      sm90_backward<kConfig>(args);
    }
  });
}

TEST(EmulatedHopperRanges, Backward) {
  for (const char* rest : kMasks) {
    expect_backward<backward(kBf16, 64)>(rest);
    expect_backward<backward(kFp16, 128)>(rest);
  }
}

TEST(EmulatedHopperRanges, BackwardOfPairs) {
  for (const char* rest : kMasks) {
    expect_backward<backward(kBf16, 128, 2, true)>(rest);
    expect_backward<backward(kFp16, 64, 2, true)>(rest);
  }
}

TEST(EmulatedHopperRanges, BackwardOfWideHeads) {
  for (const char* rest : {kMasks[0], kMasks[2], kMasks[6], kMasks[7], kMasks[9]}) {
    expect_backward<backward(kBf16, 256, 2)>(rest);
    expect_backward<backward(kFp16, 256)>(rest);
  }
}

// Keys that no query sees are not copied: the rows before a chunk's are poisoned by whole tiles.
TEST(EmulatedHopperRanges, HiddenTilesAreNotRead) {
  constexpr auto kConfig = ranges(hopper_forward(kBf16, 64, 64, 64, 2, 1));
  Tensors t("fwd bf16 chunk(128) causal b1 h1 sq64 sk512 d64", 3);
  const std::size_t hidden = 2 * 64 * 384;  // bytes of the keys before the last queries' chunk
  for (auto* tensor : {&t.k, &t.v}) std::fill_n(tensor->begin(), hidden, std::byte{0xff});  // NaN
  run<kConfig>(t, kCrossed);
  expect_met(check_forward(t.p, t.forward_args()), "hidden tiles");
}

}  // namespace
}  // namespace dfa
