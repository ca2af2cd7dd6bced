// Hopper's own backward with dropout, biases and ALiBi on a processor: its own source, held against
// fp64.
#include "emulated/hopper_backward.h"
// and then:
#include "kernels/backward/sm90_backward.cuh"
#include "kernels/backward/sm90_pair_backward.cuh"
#include "kernels/backward/sm90_wide_backward.cuh"

namespace dfa {
namespace {

using namespace emulated;

using enum DqAccumulation;

constexpr auto kBf16 = DType::bf16, kFp16 = DType::fp16;

// Products that read a tile before it was waited for.
constexpr Timing kLateCopies{.late_copies = true};

// What a configuration has beside plain scores.
constexpr int kDropout = 8, kBias = 16;

constexpr BackwardConfig config(DType element, int dim, int variants, int cluster = 1,
                                DqAccumulation dq = serialized, bool persistent = false) {
  BackwardConfig with = with_logits(BackwardConfig{.target = Target::cuda_sm90,
                                                   .element = element,
                                                   .head_dim = dim,
                                                   .value_dim = dim,
                                                   .block_q = 64,
                                                   .block_k = 64,
                                                   .warps = 8,
                                                   .stages = 2,
                                                   .ctas = 1,
                                                   .dq = dq,
                                                   .cluster = cluster,
                                                   .persistent = persistent},
                                    variants);
  with.dropout = (variants & kDropout) != 0;
  with.bias = (variants & kBias) != 0;
  return with;
}

template <BackwardConfig kConfig>
void expect_right(Tensors asked_for, const std::string& line) {
  const bool whole = asked_for.p.bias && asked_for.p.bias->of_query && asked_for.p.bias->of_key;
  if (!whole) asked_for.d_bias.clear();  // a GPU has no such gradient
  expect_gradients<kConfig>(with_forward(std::move(asked_for)), line,
                            {kLateCopies, kLate, kCrossed}, [](const Sm90BackwardArgs& args) {
                              if constexpr (kConfig.sm90_is_wide()) {
                                sm90_wide_backward<kConfig>(args);
                              } else if constexpr (kConfig.cluster > 1) {
                                sm90_pair_backward<kConfig>(args);
                              } else {
                                sm90_backward<kConfig>(args);
                              }
                            });
}
template <BackwardConfig kConfig>
void expect_right(const std::string& line) {
  expect_right<kConfig>(Tensors(line, 5), line);
}

template <BackwardConfig kConfig>
std::string said(const char* bias = "bias(1,h)") {
  return " d" + std::to_string(kConfig.head_dim) +
         said_of((kConfig.softcap ? kSoftcap : 0) | (kConfig.alibi ? kAlibi : 0)) +
         (kConfig.dropout ? " dropout(0.3,7)" : "") + (kConfig.bias ? std::string(" ") + bias : "");
}

// Edges of tiles, every mask, rows and keys that see nothing, heads that share keys, either sign.
template <BackwardConfig kConfig>
void expect_right_everywhere() {
  const std::string bwd = std::string("bwd ") + name_of(kConfig.element) + " ";
  for (const char* rest :
       {"b1 h1 sq63 sk65", "causal b1 hq4 hk2 sq100 sk150", "causal b2 h1 sq200 sk90",
        "b1 h2 sq130 sk129 window(90,20)", "b1 h1 sq70 sk200 scale(-1)", "b1 h1 s1",
        "causal b1 hq4 hk2 s193 layout(bshd)", "b1 h1 sq300 sk70 window(9,9)"}) {
    expect_right<kConfig>(bwd + rest + said<kConfig>());
  }
}

// The same of fewer problems.
template <BackwardConfig kConfig>
void expect_right_at_edges() {
  const std::string bwd = std::string("bwd ") + name_of(kConfig.element) + " ";
  for (const char* rest : {"causal b1 hq2 hk1 sq130 sk190", "b2 h1 sq200 sk65 window(60,40)"}) {
    expect_right<kConfig>(bwd + rest + said<kConfig>());
  }
}

// Whose warpgroups have both gradients of their keys.
constexpr BackwardConfig narrow(int cluster = 1, DqAccumulation dq = serialized,
                                bool persistent = false, bool masked = false) {
  BackwardConfig with = config(kBf16, 64, kDropout, cluster, dq, persistent);
  with.block_q = with.block_k = 128;
  with.masked = masked;
  return with;
}

TEST(EmulatedHopperBackwardVariants, DropoutOfNarrowHeads) {
  expect_right_everywhere<narrow()>();
  expect_right_everywhere<narrow(2, atomic, true, true)>();
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperBackwardVariants, DropoutOfNarrowHeadsInOtherGrids) {
  expect_right_everywhere<narrow(2, serialized)>();
  expect_right_everywhere<narrow(2, serialized, true)>();
  expect_right_everywhere<narrow(1, serialized_fused)>();
  expect_right_everywhere<narrow(2, atomic, false, true)>();
}
#endif

TEST(EmulatedHopperBackwardVariants, Dropout) {
  expect_right_everywhere<config(kBf16, 64, kDropout)>();
  expect_right_everywhere<config(kFp16, 128, kDropout, 2, atomic)>();
}

TEST(EmulatedHopperBackwardVariants, DropoutOfWideHeads) {
  expect_right_at_edges<config(kBf16, 192, kDropout, 2, atomic_fused, true)>();
  expect_right_at_edges<config(kBf16, 256, kDropout, 2, atomic)>();
}

TEST(EmulatedHopperBackwardVariants, Biases) {
  expect_right_everywhere<config(kBf16, 64, kBias, 2, atomic)>();
  expect_right_at_edges<config(kFp16, 128, kBias)>();
}

// Of every type, one value for all of a dimension.
TEST(EmulatedHopperBackwardVariants, BiasesOfEveryShapeAndType) {
  constexpr auto kConfig = config(kBf16, 64, kBias);
  for (const char* bias : {"bias(b,h)", "bias(1,1,fp32)", "bias(b,1,1,k,fp16)", "bias(1,h,q,1)"}) {
    expect_right<kConfig>("bwd bf16 causal b2 hq2 hk1 sq70 sk131" + said<kConfig>(bias));
  }
}

// The gradient that heads or batches share, in an order that stays, by the portable kernel.
TEST(EmulatedHopperBackwardVariants, GradientsOfBiasesInOneOrder) {
  constexpr auto kConfig = config(kBf16, 64, kBias | kDropout, 2);
  for (const char* bias : {"bias(b,1)", "bias(1,1,fp32)", "bias(b,h)"}) {
    const std::string line =
        "bwd bf16 causal b2 hq2 hk1 sq70 sk131 deterministic" + said<kConfig>(bias);
    EXPECT_EQ(adds_bias_gradient(parse_problem(line), kConfig), std::string("bias(b,h)") == bias);
    expect_right<kConfig>(line);
  }
}

// Biases that hide, of a whole row too, and NaN where the mask hides.
TEST(EmulatedHopperBackwardVariants, BiasesThatHide) {
  constexpr auto kConfig = config(kBf16, 64, kSoftcap | kBias);
  const std::string line = "bwd bf16 causal b1 h2 sq70 sk130" + said<kConfig>("bias(1,h,fp32)");
  Tensors t(line, 5);
  for (std::int64_t at = 0; at < bias_sizes(t.p).elements(); ++at) {
    const std::int64_t i = at / 130 % 70, j = at % 130;
    float value;
    std::memcpy(&value, t.bias.data() + 4 * at, 4);
    if ((i + j) % 3 == 0 || i == 17) value = j % 2 == 0 ? -INFINITY : -3e38f;
    if (j > i + 60) value = NAN;
    std::memcpy(t.bias.data() + 4 * at, &value, 4);
  }
  expect_right<kConfig>(std::move(t), line);
}

// Heads of up to 64 columns, whose dq is one share: pairs make it in turn, of keys that stay, too.
TEST(EmulatedHopperBackwardVariants, PairsOfNarrowHeads) {
  expect_right_everywhere<config(kBf16, 64, kDropout, 2, atomic, true)>();
  expect_right_at_edges<config(kFp16, 64, kSoftcap | kAlibi, 2)>();
}

TEST(EmulatedHopperBackwardVariants, AllAtOnce) {
  constexpr int kAll = kSoftcap | kAlibi | kDropout | kBias;
  expect_right_at_edges<config(kBf16, 128, kAll, 2, atomic_fused, true)>();
  expect_right_at_edges<config(kBf16, 64, kAll, 2)>();
  expect_right_at_edges<config(kFp16, 96, kAll)>();
}

constexpr BackwardConfig packed(BackwardConfig with) {
  with.varlen = true;
  return with;
}

TEST(EmulatedHopperBackwardVariants, PackedSequences) {
  constexpr int kAll = kAlibi | kDropout | kBias;
  const std::string lens = "hq4 hk2 lens(70,1,0,130,65) lens_k(150,1,9,129,0)";
  constexpr auto kPair = packed(config(kBf16, 64, kAll, 2, atomic));
  expect_right<kPair>("bwd bf16 causal " + lens + said<kPair>("bias(b,h)"));
  constexpr auto kNarrow = packed(narrow(2, atomic, false, true));
  expect_right<kNarrow>("bwd bf16 causal " + lens + said<kNarrow>());
  constexpr auto kBlock = packed(config(kBf16, 128, kAll));
  expect_right<kBlock>("bwd bf16 " + lens + said<kBlock>());
}

constexpr BackwardConfig ranges(BackwardConfig with) {
  with.ranges = true;
  return with;
}

TEST(EmulatedHopperBackwardVariants, ChunksAndPrefixes) {
  constexpr auto kConfig = ranges(config(kBf16, 64, kDropout | kBias, 2, atomic));
  expect_right<kConfig>("bwd bf16 causal b1 hq2 hk1 s200 chunk(48)" + said<kConfig>());
  expect_right<kConfig>("bwd bf16 causal b1 h1 s150 prefix(70)" + said<kConfig>());
  constexpr auto kNarrow = ranges(narrow(1, atomic));
  expect_right<kNarrow>("bwd bf16 causal b1 hq2 hk1 s200 chunk(48)" + said<kNarrow>());
}

// By what the device has, a seed and an offset.
TEST(EmulatedHopperBackwardVariants, SeedsOnTheDevice) {
  constexpr auto kConfig = config(kBf16, 128, kDropout, 2, atomic);
  const std::uint64_t state[2] = {0x123456789abcdef0, 0x1000000004};
  const std::string line = "bwd bf16 causal b2 hq4 hk2 sq100 sk150" + said<kConfig>();
  Tensors t(line, 5);
  t.dropout = state;
  expect_right<kConfig>(std::move(t), line);
}

}  // namespace
}  // namespace dfa
