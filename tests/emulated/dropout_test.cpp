// The portable kernels' own sources with dropout, on a processor, held against fp64: masks of tiles
// that begin anywhere in a draw of Philox, rows that are queries and rows that are keys.
#include <cstdint>

#include "emulated/portable.h"
#include "kernels/variant/philox.h"
#include "reference/head_dropout.h"

namespace dfa {
namespace {

using namespace emulated;

struct Tiles {
  int block_q, block_k, warps;
  int of_keys_q, of_keys_k, of_keys_warps, sharing;  // of dk and dv
  int dq_block_q, dq_block_k, dq_warps;
};
constexpr Tiles kUsual{64, 32, 4, 32, 64, 4, 1, 64, 32, 4};
constexpr Tiles kNarrow{64, 16, 4, 16, 64, 4, 1, 64, 16, 4};  // half a draw
constexpr Tiles kTall{64, 64, 2, 32, 64, 2, 1, 64, 32, 2};    // two fragments of rows a warp
constexpr Tiles kShared{32, 128, 2, 64, 32, 4, 2, 32, 128, 2};
constexpr Tiles kPlanned{128, 64, 4, 32, 128, 4, 1, 128, 32, 4};  // of d 64 in 16 bits
constexpr Tiles kShort{32, 32, 2, 16, 32, 4, 2, 32, 32, 2};       // parts of eight queries, in fp32

constexpr ForwardConfig forward_config(DType element, int dim, Tiles t, bool varlen) {
  return {.target = Target::cuda_sm80,
          .element = element,
          .head_dim = dim,
          .value_dim = dim,
          .block_q = t.block_q,
          .block_k = t.block_k,
          .warps = t.warps,
          .ctas = 1,
          .varlen = varlen,
          .dropout = true};
}

constexpr BackwardConfig backward_config(DType element, int dim, Tiles t, bool varlen) {
  return {.target = Target::cuda_sm80,
          .element = element,
          .head_dim = dim,
          .value_dim = dim,
          .block_q = t.of_keys_q,
          .block_k = t.of_keys_k,
          .warps = t.of_keys_warps,
          .sharing = t.sharing,
          .ctas = 1,
          .dq_block_q = t.dq_block_q,
          .dq_block_k = t.dq_block_k,
          .dq_warps = t.dq_warps,
          .dq_ctas = 1,
          .varlen = varlen,
          .dropout = true};
}

template <bool kLogits, typename Config>
constexpr Config with_all(Config config) {
  config.bias = kLogits;
  return with_logits(config, kLogits ? kSoftcap | kAlibi | kSink : 0);
}

// kLogits: with softcap, ALiBi and a bias, whose gradient a kernel sums,
// and sinks.
template <DType kElement, int kDim, int kTiles, bool kVarlen = false, bool kLogits = false>
Tensors expect_right(const std::string& rest, const std::uint64_t* state = nullptr) {
  constexpr Tiles kAll[] = {kUsual, kNarrow, kTall, kShared, kShort, kPlanned};
  const std::string line =
      std::string("fwdbwd ") + name_of(kElement) + " " + rest + " d" + std::to_string(kDim);
  Tensors t(line, 5);
  t.dropout = state;
  run_forward<with_all<kLogits>(forward_config(kElement, kDim, kAll[kTiles], kVarlen))>(t);
  expect_met(check_forward(t.p, t.forward_args()), line);
  run_backward<with_all<kLogits>(backward_config(kElement, kDim, kAll[kTiles], kVarlen))>(t);
  expect_met(check_backward(t.p, t.backward_args()), line);
  return t;
}

constexpr const char* kProblems[] = {"causal b2 hq4 hk2 sq70 sk100 dropout(0.1,7)",
                                     "b1 hq2 hk1 sq100 sk65 dropout(0.5,123456789012345)",
                                     "window(20,3) b1 hq2 hk2 sq90 sk40 dropout(0.3,1)",
                                     "b2 h1 sq1 sk90 dropout(0.9,3)"};

#ifdef DFA_EVERY_CASE
TEST(EmulatedDropout, OfEveryElementTypeAndTile) {
  for (const char* rest : kProblems) {
    expect_right<DType::bf16, 64, 0>(rest);
    expect_right<DType::bf16, 64, 1>(rest);
    expect_right<DType::bf16, 64, 2>(rest);
    expect_right<DType::bf16, 64, 3>(rest);
    expect_right<DType::fp32, 32, 0>(rest);
    expect_right<DType::fp32, 32, 1>(rest);
    expect_right<DType::fp32, 32, 4>(rest);
    expect_right<DType::tf32, 32, 2>(rest);
  }
}
#endif

TEST(EmulatedDropout, OfPackedSequences) {
  const char* rest = "causal hq4 hk2 lens(70,1,0,130,65) lens_k(150,1,9,129,0) dropout(0.2,9)";
  expect_right<DType::bf16, 64, 0, true>(rest);
  expect_right<DType::bf16, 64, 5, true>(rest);
  expect_right<DType::fp32, 32, 2, true>(rest);
}

TEST(EmulatedDropout, BesideEverythingThatIsDoneToLogits) {
  const char* said = " softcap(4) alibi bias(b,h) sink dropout(0.2,9)";
  const std::string dense = std::string("causal b2 hq4 hk2 sq70 sk100") + said;
  expect_right<DType::bf16, 64, 0, false, true>(dense);
  expect_right<DType::fp32, 32, 1, false, true>(dense);
  expect_right<DType::bf16, 64, 0, true, true>(
      std::string("causal hq4 hk2 lens(70,1,0,130,65) lens_k(150,1,9,129,0)") + said);
}

// Seed and offset are read where the kernel runs; what the problem says does not count then.
TEST(EmulatedDropout, SeedAndOffsetAreReadFromMemory) {
  const std::uint64_t state[2] = {0x123456789abcdef0, 0x1000000004}, other[2] = {state[0], 8};
  const std::string rest = "b1 hq2 hk1 sq40 sk65 dropout(0.5,3)";
  const Tensors by_state = expect_right<DType::bf16, 64, 0>(rest, state);
  const Tensors by_other = expect_right<DType::bf16, 64, 0>(rest, other);
  const Tensors by_seed = expect_right<DType::bf16, 64, 0>(rest);
  EXPECT_FALSE(by_state.o == by_other.o);
  EXPECT_FALSE(by_state.o == by_seed.o);
}

// What is not 0 in o where v is a row's unit vector, of every tile, is what the reference keeps.
template <int kTiles>
void expect_mask() {
  constexpr Tiles kAll[] = {kUsual, kNarrow, kTall, kShared};
  Tensors t("fwd bf16 b2 hq2 hk1 sq100 sk64 d64 dropout(0.4,5)", 1);
  for (std::int64_t i = 0; i < t.count(t.q); ++i) t.set(t.q, i, 0);
  for (std::int64_t i = 0; i < t.count(t.v); ++i) t.set(t.v, i, i / 64 % 64 == i % 64 ? 1 : 0);
  run_forward<forward_config(DType::bf16, 64, kAll[kTiles], false)>(t);
  for (std::int64_t at = 0; at < t.count(t.o); ++at) {
    const std::int64_t j = at % 64, i = at / 64 % 100, head = at / 6400;
    const HeadDropout<double> truth(t.p, {}, head / 2, head % 2);
    ASSERT_EQ(truth.of(i, j) != 0, t.at(t.o, at) != 0)
        << kTiles << ": " << head << " " << i << " " << j;
  }
}

TEST(EmulatedDropout, EveryTileDrawsTheMaskOfTheReference) {
  expect_mask<0>();
  expect_mask<1>();
  expect_mask<2>();
  expect_mask<3>();
}

TEST(EmulatedDropout, PhiloxDrawsThePublishedNumbers) {
  const auto expect = [](PhiloxWords counter, unsigned key0, unsigned key1, PhiloxWords published) {
    const PhiloxWords drawn = philox(counter, key0, key1);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(drawn.word[i], published.word[i]);
  };
  const unsigned ones = 0xffffffff;
  expect({{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  expect({{ones, ones, ones, ones}}, ones, ones,
         {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  expect({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0,
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

}  // namespace
}  // namespace dfa
