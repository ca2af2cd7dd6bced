// Hopper's own kernels in fp16 and bf16 with softcap, ALiBi and sinks on a processor: their own
// source, held against fp64.
#include "emulated/warps.h"
// and then:
#include "emulated/hopper_backward.h"
#include "emulated/hopper_forward.h"
#include "emulated/sm90_any_backward.h"

namespace dfa {
namespace {

using namespace emulated;

constexpr auto kBf16 = DType::bf16, kFp16 = DType::fp16;

template <ForwardConfig kConfig, int kLogits>
void expect_right_with(const std::string& line) {
  expect_right<with_logits(kConfig, kLogits)>(line + said_of(kLogits));
}

// Rows that see no key, a scale that is negative, one under which weights leave the range of fp32,
// columns that are padded.
template <ForwardConfig kConfig, int kLogits>
void expect_right_everywhere() {
  const std::string fwd = std::string("fwd ") + name_of(kConfig.element);
  const std::string dim = " d" + std::to_string(kConfig.head_dim);
  expect_right_with<kConfig, kLogits>(fwd + " causal b2 hq4 hk2 sq200 sk330" + dim);
  expect_right_with<kConfig, kLogits>(fwd + " causal b1 h1 sq200 sk90" + dim);
  expect_right_with<kConfig, kLogits>(fwd + " b1 h2 sq130 sk129 d" +
                                      std::to_string(kConfig.head_dim - 24) +
                                      " window(90,20) layout(bshd)");
  expect_right_with<kConfig, kLogits>(fwd + " b1 h1 sq70 sk300 scale(-1)" + dim);
  expect_right_with<kConfig, kLogits>(fwd + " causal b1 h2 s200 scale(20)" + dim);
}

constexpr auto kTurns = hopper_forward(kBf16, 64, 128, 128, 3, 2, true);
constexpr auto kHalf = hopper_forward(kFp16, 64, 64, 128, 2, 1);

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperLogits, Softcap) {
  expect_right_everywhere<kTurns, kSoftcap>();
  expect_right_everywhere<kHalf, kSoftcap>();
}

TEST(EmulatedHopperLogits, Sinks) {
  expect_right_everywhere<kTurns, kSink>();
  expect_right_everywhere<kHalf, kSink>();
}

TEST(EmulatedHopperLogits, Alibi) {
  expect_right_everywhere<kTurns, kAlibi>();
  expect_right_everywhere<kHalf, kAlibi>();
}
#endif

TEST(EmulatedHopperLogits, AllAtOnce) {
  constexpr int kAll = kSoftcap | kAlibi | kSink;
  expect_right_everywhere<kTurns, kAll>();
  expect_right_with<hopper_forward(kBf16, 128, 128, 64, 2, 2, false, 2), kAll>(
      "fwd bf16 causal b1 hq2 hk1 s400 d128");
}

// gpt-oss's layers: a group's heads are rows of a tile of four warpgroups.
TEST(EmulatedHopperLogits, SinksOfPackedHeadsUnderAWindow) {
  expect_right_with<packing(hopper_forward(kBf16, 64, 256, 64, 4, 2), 8), kSink>(
      "fwd bf16 b1 hq16 hk2 sq70 sk200 d64 window(60,0) layout(bshd)");
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperLogits, TilesOfOtherShapes) {
  expect_right_with<hopper_forward(kBf16, 128, 192, 80, 2, 2), kSoftcap | kSink>(
      "fwd bf16 causal b1 hq2 hk1 s400 d128");
  constexpr auto kHolding = [] {
    ForwardConfig c = hopper_forward(kBf16, 256, 128, 64, 2, 1);
    c.q_columns_in_regs = 64;
    return c;
  }();
  expect_right_with<kHolding, kSoftcap | kSink>("fwd bf16 causal b1 hq4 hk2 sq300 sk200 d256");
}
#endif

// A cap far above all logits changes none, and one far below leaves their signs.
TEST(EmulatedHopperLogits, CapsOfAnySize) {
  constexpr auto kCapped = with_logits(kHalf, kSoftcap);
  for (const char* cap : {"1e-30", "1e-3", "0.3", "50", "1e6", "1e30"}) {
    expect_right<kCapped>("fwd fp16 causal b1 h1 sq70 sk130 d64 softcap(" + std::string(cap) + ")");
  }
}

// Rows that see nothing have the sink for their lse; a sink far above or below all scores.
TEST(EmulatedHopperLogits, SinksOfAnySize) {
  constexpr auto kConfig = with_logits(kTurns, kSink);
  Tensors t("fwd bf16 causal b1 h4 sq150 sk100 d64 sink", 5);
  t.sinks = {-90, 90, -INFINITY, 0};
  run<kConfig>(t, kCrossed);
  expect_met(check_forward(t.p, t.forward_args()), "sinks");
  EXPECT_NEAR(t.lse[0], -90, 2e-5);
  EXPECT_NEAR(t.lse[150], 90, 2e-5);
  EXPECT_EQ(t.lse[300], -INFINITY);
}

TEST(EmulatedHopperLogits, SlopesAndSinksThatAreNan) {
  constexpr auto kConfig = with_logits(kTurns, kSoftcap | kAlibi | kSink);
  expect_nan_in_its_head_alone("fwd bf16 causal b1 h2 s150 d64 softcap(3) alibi sink",
                               [](Tensors& t) { run<kConfig>(t, kCrossed); });
}

#ifdef DFA_EVERY_CASE
// Neighbouring rows are heads, each with a slope and a sink of its own; some rows are left.
TEST(EmulatedHopperLogits, HeadsAsRowsOfATile) {
  constexpr int kAll = kSoftcap | kAlibi | kSink;
  constexpr auto kConfig = hopper_forward(kBf16, 64, 128, 128, 3, 2);
  expect_right_with<packing(kConfig, 8), kAll>("fwd bf16 causal b2 hq16 hk2 sq17 sk200 d64");
  expect_right_with<packing(kConfig, 16), kAll>("fwd bf16 causal b2 hq16 hk1 sq17 sk200 d64");
  expect_right_with<packing(kConfig, 3), kAll>("fwd bf16 causal b2 hq6 hk2 sq37 sk330 d64");
  expect_right_with<packing(kConfig, 5), kAll>("fwd bf16 causal b1 hq10 hk2 sq40 sk25 d64");
}

// The sink is added where splits of the keys are joined, and in work tiles that are whole.
TEST(EmulatedHopperLogits, SplitsOfTheKeys) {
  constexpr auto kSplit = [] {
    ForwardConfig c = hopper_forward(kBf16, 64, 64, 64, 2, 1);
    c.num_splits = 5;
    return c;
  }();
  expect_right_with<kSplit, kSoftcap | kAlibi | kSink>(
      "fwd bf16 b1 h7 sq70 sk130 d40 layout(bshd)");
  expect_right_with<kSplit, kSink>("fwd bf16 b2 hq4 hk2 sq1 sk1000 d64");
  expect_right_with<kSplit, kSink>("fwd bf16 causal b1 h1 sq200 sk100 d64");
  expect_right_with<packing(kSplit, 4), kSink>("fwd bf16 causal b2 hq8 hk2 sq3 sk1000 d64");
}
#endif

constexpr BackwardConfig backward(DType element, int dim, int logits, int cluster = 1,
                                  DqAccumulation dq = DqAccumulation::serialized,
                                  bool persistent = false) {
  return with_logits(BackwardConfig{.target = Target::cuda_sm90,
                                    .element = element,
                                    .head_dim = dim,
                                    .value_dim = dim,
                                    .block_q = dim > 64 ? 64 : 128,
                                    .block_k = logits == 0 && dim <= 128 ? 128 : 64,
                                    .warps = 8,
                                    .stages = 2,
                                    .ctas = 1,
                                    .dq = dq,
                                    .cluster = cluster,
                                    .persistent = persistent},
                     logits);
}

template <BackwardConfig kConfig>
void expect_gradients_of(const std::string& line) {
  expect_gradients<kConfig>(line, {kLate, kCrossed}, &sm90_any_backward<kConfig>);
}

// Which are logits of the configuration, and a sink, of which kernels know nothing.
template <BackwardConfig kConfig>
void expect_gradients_everywhere() {
  constexpr int kLogits = (kConfig.softcap ? kSoftcap : 0) | (kConfig.alibi ? kAlibi : 0);
  const std::string bwd = std::string("bwd ") + name_of(kConfig.element) + " ";
  const std::string dim = " d" + std::to_string(kConfig.head_dim);
  for (const char* rest : {"causal b1 hq4 hk2 sq100 sk150", "causal b2 h1 sq200 sk90",
                           "b1 h2 sq130 sk129 window(90,20)", "b1 h1 sq70 sk200 scale(-1)"}) {
    expect_gradients_of<kConfig>(bwd + rest + dim + said_of(kLogits));
  }
  expect_gradients_of<kConfig>(bwd + "causal b2 hq4 hk2 sq100 sk150" + dim +
                               said_of(kLogits | kSink));
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperLogits, GradientsOfSinks) {
  expect_gradients_everywhere<backward(kBf16, 64, 0)>();
  expect_gradients_everywhere<backward(kFp16, 128, 0, 2)>();
  expect_gradients_everywhere<backward(kBf16, 256, 0)>();
}

TEST(EmulatedHopperLogits, GradientsOfSoftcap) {
  expect_gradients_everywhere<backward(kBf16, 128, kSoftcap)>();
  expect_gradients_everywhere<backward(kFp16, 96, kSoftcap, 2, DqAccumulation::atomic)>();
  expect_gradients_everywhere<backward(kBf16, 256, kSoftcap, 2, DqAccumulation::atomic, true)>();
}
#endif

TEST(EmulatedHopperLogits, GradientsOfAlibi) {
  expect_gradients_everywhere<backward(kBf16, 128, kAlibi)>();
  expect_gradients_everywhere<backward(kFp16, 128, kAlibi, 2, DqAccumulation::atomic_fused,
                                       true)>();
  expect_gradients_everywhere<backward(kBf16, 192, kSoftcap | kAlibi, 2)>();
}

// Where a cap is far above all logits nothing is left of it, and far below next to all.
TEST(EmulatedHopperLogits, GradientsOfCapsOfAnySize) {
  constexpr auto kCapped = backward(kBf16, 128, kSoftcap);
  for (const char* cap : {"1e-3", "0.3", "50", "1e6", "1e30"}) {
    expect_gradients_of<kCapped>("bwd bf16 causal b1 h1 sq70 sk130 d128 softcap(" +
                                 std::string(cap) + ")");
  }
}

// To some units of the last place, wherever it is; NaN is not told from numbers otherwise.
TEST(EmulatedHopperLogits, QuickTanh) {
  for (float x = 1e-38f; x < 1e38f; x *= 1.003f) {
    const double right = std::tanh(static_cast<double>(x));
    ASSERT_NEAR(quick_tanh(x), right, 8e-7 * right) << x;
    ASSERT_EQ(quick_tanh(-x), -quick_tanh(x)) << x;
  }
  EXPECT_EQ(quick_tanh(0), 0);
  EXPECT_NEAR(quick_tanh(INFINITY), 1, 8e-7);
  EXPECT_NEAR(quick_tanh(-INFINITY), -1, 8e-7);
  EXPECT_TRUE(std::isnan(quick_tanh(std::nanf(""))));
}

}  // namespace
}  // namespace dfa
