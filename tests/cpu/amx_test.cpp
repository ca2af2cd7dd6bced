#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

#include "cpu/amx_emulated_engine.h"
#include "cpu/amx_truth.h"
#include "cpu/cpuid.h"

namespace dfa::cpu {
namespace {

struct Case {
  std::int64_t sq, sk;
  int d, dv;
  Mask mask = kFull;
  int group = 1;
  int block_q = 64, block_k = 64;
  float scale = 0;    // 0: 1 / sqrt(d)
  double q_gain = 1;  // large: scores no bound covers
  int pad = 0;        // elements between rows, poisoned
  int splits = 1;
};

HeadShape shape_of(const Case& c) {
  return {.sq = c.sq,
          .sk = c.sk,
          .d = c.d,
          .dv = c.dv,
          .mask = c.mask,
          .scale = c.scale != 0 ? c.scale : 1.0f / std::sqrt(static_cast<float>(c.d)),
          .q_row = c.d + c.pad,
          .k_row = c.d + c.pad,
          .v_row = c.dv + c.pad,
          .o_row = c.dv + c.pad};
}

constexpr std::uint16_t kPoison = 0x7fc1;  // NaN

std::vector<std::uint16_t> normal(std::int64_t rows, int width, int pad, double gain,
                                  std::mt19937_64& random) {
  std::normal_distribution<double> distribution(0.0, gain);
  std::vector<std::uint16_t> values(static_cast<std::size_t>(rows * (width + pad)), kPoison);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (int c = 0; c < width; ++c) {
      values[static_cast<std::size_t>(row * (width + pad) + c)] =
          to_bf16(static_cast<float>(distribution(random))).bits;
    }
  }
  return values;
}

HeadTensors inputs(const Case& c, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  HeadTensors t;
  t.group = c.group;
  t.q = normal(c.group * c.sq, c.d, c.pad, c.q_gain, random);
  t.k = normal(c.sk, c.d, c.pad, 1, random);
  t.v = normal(c.sk, c.dv, c.pad, 1, random);
  t.d_o = normal(c.group * c.sq, c.dv, c.pad, 1, random);
  t.o.assign(t.d_o.size(), kPoison);
  t.dq.assign(t.q.size(), kPoison);
  t.dk.assign(t.k.size(), kPoison);
  t.dv.assign(t.v.size(), kPoison);
  t.lse.assign(static_cast<std::size_t>(c.group * c.sq), std::nanf(""));
  return t;
}

void forward(const Engine& engine, const Case& c, HeadTensors& t, std::int64_t rows = 0) {
  const HeadShape shape = shape_of(c);
  const ForwardConfig config{.target = Target::cpu_amx,
                             .element = DType::bf16,
                             .head_dim = c.d,
                             .value_dim = c.dv,
                             .block_q = c.block_q,
                             .block_k = c.block_k};
  HeadForward(engine, config, shape).run(t, rows);
}

void backward(const Engine& engine, const Case& c, HeadTensors& t) {
  const HeadShape shape = shape_of(c);
  const BackwardConfig config{.target = Target::cpu_amx,
                              .element = DType::bf16,
                              .head_dim = c.d,
                              .value_dim = c.dv,
                              .block_q = c.block_q,
                              .block_k = c.block_k};
  HeadBackward(engine, config, shape, c.group, c.splits).run(t);
}

struct Errors {
  double most = 0, mean = 0;
  void add(double error) {
    most = std::isnan(error) ? INFINITY : std::fmax(most, std::fabs(error));
    mean += std::isnan(error) ? INFINITY : std::fabs(error);
  }
};

// max|out - ref| <= 2 max|naive - ref| + 2 rounding noise; mean within 1.5 of naive's.
void expect_close(const char* name, const std::vector<std::uint16_t>& out, std::int64_t first_row,
                  std::int64_t width, std::int64_t stride, const Matrix& ref, const Matrix& naive) {
  Errors error, naive_error, noise;
  for (std::size_t i = 0; i < ref.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / width,
               column = static_cast<std::int64_t>(i) % width;
    const auto at = static_cast<std::size_t>((first_row + row) * stride + column);
    error.add(to_float(bf16{out[at]}) - ref[i]);
    naive_error.add(rounded_to_bf16(naive[i]) - ref[i]);
    noise.add(rounded_to_bf16(rounded_to_bf16(ref[i] + 0.3) - 0.3) - ref[i]);
  }
  EXPECT_LE(error.most, 2 * naive_error.most + 2 * noise.most) << name;
  EXPECT_LE(error.mean, 1.5 * naive_error.mean + noise.mean) << name;
}

void expect_padding_kept(const std::vector<std::uint16_t>& out, int width, int pad) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto column = static_cast<int>(i % static_cast<std::size_t>(width + pad));
    if (column < width) continue;
    ASSERT_EQ(out[i], kPoison) << "the gap after a row was written";
  }
}

void check_head(const Case& c, const HeadTensors& t, int head, Matrix sums[4]) {
  const HeadShape shape = shape_of(c);
  const Truth ref = TrueHead(shape, false).run(t, head), naive = TrueHead(shape, true).run(t, head);
  const std::int64_t row = head * c.sq;
  expect_close("o", t.o, row, c.dv, shape.o_row, ref.o, naive.o);
  for (std::int64_t i = 0; i < c.sq; ++i) {
    const double want = ref.lse[static_cast<std::size_t>(i)];
    const double got = t.lse[static_cast<std::size_t>(row + i)];
    if (std::isinf(want)) {
      ASSERT_EQ(got, want) << "lse of row " << i;
    } else {
      ASSERT_NEAR(got, want, 1e-5 * (1 + std::fabs(want))) << "lse of row " << i;
    }
  }
  expect_close("dq", t.dq, row, c.d, shape.q_row, ref.dq, naive.dq);
  const Matrix* parts[] = {&ref.dk, &naive.dk, &ref.dv, &naive.dv};
  for (int i = 0; i < 4; ++i) {
    sums[i].resize(parts[i]->size());
    for (std::size_t j = 0; j < sums[i].size(); ++j) sums[i][j] += (*parts[i])[j];
  }
}

void check(const Engine& engine, const Case& c) {
  SCOPED_TRACE("sq" + std::to_string(c.sq) + " sk" + std::to_string(c.sk) + " d" +
               std::to_string(c.d) + " dv" + std::to_string(c.dv) + " window(" +
               std::to_string(c.mask.left) + "," + std::to_string(c.mask.right) + ") chunk " +
               std::to_string(c.mask.chunk) + " prefix " + std::to_string(c.mask.prefix) +
               " blocks " + std::to_string(c.block_q) + " " + std::to_string(c.block_k));
  HeadTensors t = inputs(c);
  forward(engine, c, t);
  backward(engine, c, t);
  Matrix sums[4];
  for (int head = 0; head < c.group; ++head) check_head(c, t, head, sums);
  const HeadShape shape = shape_of(c);
  expect_close("dk", t.dk, 0, c.d, shape.k_row, sums[0], sums[1]);
  expect_close("dv", t.dv, 0, c.dv, shape.v_row, sums[2], sums[3]);
  expect_padding_kept(t.o, c.dv, c.pad);
  expect_padding_kept(t.dq, c.d, c.pad);
  expect_padding_kept(t.dk, c.d, c.pad);
  expect_padding_kept(t.dv, c.dv, c.pad);
}

class AmxEngine : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_avx512_bf16()) GTEST_SKIP() << "needs AVX-512 with BF16, emulated tiles or not";
  }
  const Engine& engine = amx_emulated_engine();
};

TEST_F(AmxEngine, AgreesWithFp64AroundTheTileEdges) {
  for (const std::int64_t sq : {1, 31, 32, 33, 65}) check(engine, {sq, 70, 64, 64});
  for (const std::int64_t sk : {1, 31, 32, 33, 97}) check(engine, {40, sk, 64, 64});
}

TEST_F(AmxEngine, AgreesWithFp64ForEveryWidth) {
  for (const int d : {8, 24, 40, 64, 80, 96, 128, 192, 256}) check(engine, {40, 70, d, d});
  check(engine, {40, 70, 192, 128});
  check(engine, {40, 70, 32, 104});
  for (const int d : {264, 320, 384, 512}) check(engine, {40, 70, d, d, kCausal});
  check(engine, {70, 40, 512, 64});
  check(engine, {40, 70, 72, 504, {17, 5}, 2});
}

TEST_F(AmxEngine, AgreesWithFp64UnderMasks) {
  check(engine, {130, 130, 32, 32, kCausal});
  check(engine, {70, 130, 32, 32, kCausal});
  check(engine, {130, 70, 32, 32, kCausal});  // the first 60 rows see nothing
  check(engine, {130, 130, 32, 32, {17, 5}});
  check(engine, {130, 130, 32, 32, {40, 0}});
  check(engine, {100, 160, 32, 32, {-1, 9}});
  for (const long long chunk : {1, 20, 32, 50, 64, 500}) {
    check(engine, {130, 130, 32, 32, {-1, 0, chunk}});
    check(engine, {70, 130, 32, 32, {-1, -1, chunk}});
    check(engine, {130, 70, 32, 32, {20, 5, chunk}});
  }
  for (const long long prefix : {1, 33, 64, 100, 500}) {
    check(engine, {130, 130, 32, 32, {-1, 0, 0, prefix}});
    check(engine, {130, 70, 32, 32, {-1, 0, 0, prefix}});
  }
}

TEST_F(AmxEngine, AgreesWithFp64ForEveryBlock) {
  for (const int block_q : {32, 64, 128, 512}) {
    for (const int block_k : {32, 96, 128, 512}) {
      check(engine, {150, 180, 32, 32, kCausal, 1, block_q, block_k});
    }
  }
}

TEST_F(AmxEngine, SumsTheQueryHeadsOfAGroupAndTheSharesOfDq) {
  check(engine, {70, 200, 32, 32, kCausal, 3, 64, 64, 0, 1, 0, 3});
}

TEST_F(AmxEngine, LeavesTheGapsBetweenRowsAlone) {
  check(engine, {40, 70, 40, 24, kFull, 2, 32, 32, 0, 1, 8});
}

TEST_F(AmxEngine, FollowsTheMaximumWhenScoresHaveNoBound) {
  check(engine, {70, 200, 64, 64, kFull, 1, 64, 64, 0, 12});
  check(engine, {70, 200, 64, 64, kCausal, 1, 64, 64, 0, 40});
  check(engine, {70, 200, 64, 64, kCausal, 1, 64, 64, -2.0f, 1});
  check(engine, {70, 70, 64, 64, kCausal, 1, 64, 64, -0.1f, 1});
}

// Scores rise from block to block, so that the maximum moves and the output is rescaled each time.
TEST_F(AmxEngine, RescalesWhenTheMaximumMoves) {
  const Case c{64, 256, 32, 32, kFull, 1, 32, 32, 1.0f};
  HeadTensors t = inputs(c);
  for (std::size_t i = 0; i < t.q.size(); ++i) t.q[i] = to_bf16(i % 32 == 0 ? 1.0f : 0.0f).bits;
  for (std::size_t j = 0; j < t.k.size(); ++j) {
    t.k[j] = to_bf16(j % 32 == 0 ? static_cast<float>(j / 32) : 0.0f).bits;
  }
  forward(engine, c, t);
  const Truth ref = TrueHead(shape_of(c), false).run(t, 0),
              naive = TrueHead(shape_of(c), true).run(t, 0);
  expect_close("o", t.o, 0, 32, 32, ref.o, naive.o);
  for (std::size_t i = 0; i < 64; ++i) EXPECT_NEAR(t.lse[i], ref.lse[i], 1e-5 * (1 + ref.lse[i]));
}

// Groups of 32 rows follow one another in the pipeline: those that need a running maximum after
// those that do not, and past rows that see nothing.
TEST_F(AmxEngine, OneLongTileIsItsGroupsOneByOneToTheBit) {
  for (const Case& c : {Case{200, 230, 64, 64, kFull, 1, 32, 64},
                        {230, 200, 128, 64, kCausal, 1, 32},
                        {200, 90, 32, 32, kCausal, 1, 32, 96},
                        {300, 300, 64, 64, {40, 9}, 1, 32}}) {
    HeadTensors t = inputs(c);
    for (int row = 128; row < 160; ++row) {
      for (int i = 0; i < c.d; ++i) {
        std::uint16_t& x = t.q[static_cast<std::size_t>(row * c.d + i)];
        x = to_bf16(16 * to_float(bf16{x})).bits;
      }
    }
    HeadTensors groups = t;
    forward(engine, c, groups);
    forward(engine, c, t, c.sq);
    EXPECT_EQ(t.o, groups.o);
    EXPECT_EQ(t.lse, groups.lse);
    const Truth ref = TrueHead(shape_of(c), false).run(t, 0);
    expect_close("o", t.o, 0, c.dv, c.dv, ref.o, TrueHead(shape_of(c), true).run(t, 0).o);
  }
}

TEST_F(AmxEngine, RowsThatSeeNothingAreZeroAndTheirLseIsMinusInfinity) {
  const Case c{130, 70, 32, 32, kCausal};
  HeadTensors t = inputs(c);
  forward(engine, c, t);
  backward(engine, c, t);
  for (std::size_t i = 0; i < 60 * 32; ++i) ASSERT_EQ(t.o[i], 0) << i;
  for (std::size_t i = 0; i < 60; ++i) ASSERT_EQ(t.lse[i], -INFINITY) << i;
  for (std::size_t i = 0; i < 60 * 32; ++i) ASSERT_EQ(t.dq[i], 0) << i;
}

TEST_F(AmxEngine, NanInOneQueryReachesThatRowAndNoOther) {
  const Case c{70, 70, 32, 32};
  HeadTensors t = inputs(c);
  t.q[40 * 32 + 3] = kPoison;
  forward(engine, c, t);
  for (std::size_t row = 0; row < 70; ++row) {
    EXPECT_EQ(std::isnan(to_float(bf16{t.o[row * 32]})), row == 40) << row;
    EXPECT_EQ(std::isnan(t.lse[row]), row == 40) << row;
  }
}

TEST_F(AmxEngine, NanInAKeyReachesTheRowsThatSeeItAndNoOther) {
  const Case c{70, 70, 32, 32, kCausal};
  HeadTensors t = inputs(c);
  t.k[40 * 32] = kPoison;
  forward(engine, c, t);
  for (std::size_t row = 0; row < 70; ++row) {
    EXPECT_EQ(std::isnan(to_float(bf16{t.o[row * 32]})), row >= 40) << row;
  }
}

// Within a tile on the mask's edge a hidden value is multiplied by a weight of 0, and 0 NaN is NaN:
// rows 32 to 39 share the tile of key 40. No other row may change, nor any other column.
TEST_F(AmxEngine, NanInAValueReachesTheRowsThatSeeItsTile) {
  const Case c{70, 70, 32, 32, kCausal};
  HeadTensors t = inputs(c);
  t.v[40 * 32] = kPoison;
  forward(engine, c, t);
  for (std::size_t row = 0; row < 70; ++row) {
    if (row < 32 || row >= 40) {
      EXPECT_EQ(std::isnan(to_float(bf16{t.o[row * 32]})), row >= 40) << row;
    }
    EXPECT_FALSE(std::isnan(to_float(bf16{t.o[row * 32 + 1]}))) << row;
    EXPECT_FALSE(std::isnan(t.lse[row])) << row;
  }
}

TEST_F(AmxEngine, OneKeyGivesItsValueToTheBit) {
  const Case c{70, 1, 64, 64};
  HeadTensors t = inputs(c);
  forward(engine, c, t);
  for (std::size_t i = 0; i < t.o.size(); ++i) ASSERT_EQ(t.o[i], t.v[i % 64]) << i;
}

TEST_F(AmxEngine, HugeAndTinyValuesDoNotOverflowTheUnnormalisedSums) {
  for (const float size : {1e30f, 1e-30f}) {
    const Case c{40, 70, 64, 64, kFull, 1, 64, 64, 0, 6};
    HeadTensors t = inputs(c);
    for (auto& x : t.v) x = to_bf16(to_float(bf16{x}) * size).bits;
    forward(engine, c, t);
    const Truth ref = TrueHead(shape_of(c), false).run(t, 0);
    for (std::size_t i = 0; i < ref.o.size(); ++i) {
      ASSERT_NEAR(to_float(bf16{t.o[i]}) / size, ref.o[i] / size, 0.03) << i;
    }
  }
}

TEST_F(AmxEngine, HardwareTilesDoWhatTheEmulationDoes) {
  if (!has(Target::cpu_amx)) GTEST_SKIP() << has(Target::cpu_amx).reason;
  check(amx_engine(), {130, 130, 64, 64, kCausal});
  check(amx_engine(), {100, 200, 128, 128, kFull, 2});
  check(amx_engine(), {70, 200, 80, 40, kCausal, 1, 128, 96, 0, 40});
}

}  // namespace
}  // namespace dfa::cpu
