#include "cpu/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/element.h"
#include "base/random.h"
#include "cpu/cpuid.h"
#include "cpu/plain_attention.h"
#include "spec/config_names.h"

namespace dfa::cpu {
namespace {

using test::Plain;
using test::PlainShape;
using Floats = std::vector<float>;

struct Case {
  DType element = DType::fp32;
  int sq = 64, sk = 64, d = 64, dv = 64;
  Mask mask = kFull;
  int group = 1;
  int block_q = 64, block_k = 64;
  int splits = 1;
  float scale = 0;  // 0: 1 / sqrt(d)
  float spread = 1;
};

std::string text(const Case& c) {
  return std::string(name_of(c.element)) + " sq" + std::to_string(c.sq) + " sk" +
         std::to_string(c.sk) + " d" + std::to_string(c.d) + " dv" + std::to_string(c.dv) +
         " window(" + std::to_string(c.mask.left) + "," + std::to_string(c.mask.right) + ") group" +
         std::to_string(c.group) + " tile " + std::to_string(c.block_q) + "x" +
         std::to_string(c.block_k) + " splits" + std::to_string(c.splits) + " scale" +
         std::to_string(c.scale);
}

// A strided matrix of elements; what lies between its rows and after them is NaN and stays so.
class Matrix {
 public:
  Matrix(DType type, int rows, int cols, int row_stride)
      : type_(type),
        rows_(rows),
        cols_(cols),
        stride_(row_stride),
        bytes_(static_cast<std::size_t>((rows + 1) * row_stride * bytes_of(type)),
               std::byte{0xff}) {}

  void fill(const Floats& values) {
    for (int r = 0; r < rows_; ++r) {
      for (int c = 0; c < cols_; ++c) {
        store_element(bytes_.data(), type_, r * stride_ + c,
                      values[static_cast<std::size_t>(r * cols_ + c)]);
      }
    }
  }
  Floats values() const {
    Floats out;
    for (int r = 0; r < rows_; ++r) {
      for (int c = 0; c < cols_; ++c) {
        out.push_back(load_element(bytes_.data(), type_, r * stride_ + c));
      }
    }
    return out;
  }
  bool gaps_are_untouched() const {
    const int size = bytes_of(type_);
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      const int element = static_cast<int>(i) / size;
      const bool inside = element % stride_ < cols_ && element / stride_ < rows_;
      if (!inside && bytes_[i] != std::byte{0xff}) return false;
    }
    return true;
  }
  void* data() { return bytes_.data(); }
  int stride() const { return stride_; }

 private:
  DType type_;
  int rows_, cols_, stride_;
  std::vector<std::byte> bytes_;
};

// Aligned scratch full of NaN, with guard bytes after its end.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes) : bytes_(bytes), buffer_(bytes + kGuard) {
    std::memset(buffer_.data(), 0xff, bytes + kGuard);
  }
  std::byte* data() { return buffer_.as<std::byte>(); }
  bool guard_is_untouched() {
    return std::all_of(data() + bytes_, data() + bytes_ + kGuard,
                       [](std::byte b) { return b == std::byte{0xff}; });
  }

 private:
  static constexpr std::size_t kGuard = 256;
  std::size_t bytes_;
  AlignedBuffer buffer_;
};

Floats draw(DType type, int count, std::uint64_t seed, float spread) {
  Floats values(static_cast<std::size_t>(count));
  const Random random(seed);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = round_to(type, spread * random.normal(i));
  }
  return values;
}

// One key/value head and the query heads of its group, run through an engine as the driver would.
struct Head {
  Floats q, d_o, o, lse, dq;
};

struct Tensors {
  Floats k, v, dk, dv;
  std::vector<Head> heads;
};

class Harness {
 public:
  Harness(const Engine& engine, const Case& c) : engine_(engine), c_(c) {
    if (c_.scale == 0) c_.scale = 1.0f / std::sqrt(static_cast<float>(c_.d));
    run_.k = draw(c_.element, c_.sk * c_.d, 1, c_.spread);
    run_.v = draw(c_.element, c_.sk * c_.dv, 2, 1.0f);
    for (int h = 0; h < c_.group; ++h) {
      const auto seed = static_cast<std::uint64_t>(h);
      run_.heads.push_back({.q = draw(c_.element, c_.sq * c_.d, 10 + seed, c_.spread),
                            .d_o = draw(c_.element, c_.sq * c_.dv, 20 + seed, 1.0f),
                            .o = {},
                            .lse = {},
                            .dq = {}});
    }
  }

  Tensors& inputs() { return run_; }

  const Tensors& run() {
    forward();
    backward();
    return run_;
  }

  PlainShape plain_shape() const { return {c_.sq, c_.sk, c_.d, c_.dv, c_.mask, c_.scale}; }

  void forward() {
    const HeadShape s = shape();
    const ForwardConfig config = tile<ForwardConfig>();
    Matrix k(c_.element, c_.sk, c_.d, k_row()), v(c_.element, c_.sk, c_.dv, v_row());
    k.fill(run_.k);
    v.fill(run_.v);
    Scratch packed(engine_.packed_kv_bytes(config, s));
    // In two calls, as two threads would.
    const std::int64_t half = c_.sk / 2 / c_.block_k * c_.block_k;
    engine_.pack_kv(config, s, {k.data(), v.data(), packed.data(), half, c_.sk});
    if (half > 0) engine_.pack_kv(config, s, {k.data(), v.data(), packed.data(), 0, half});
    expect_the_same_behind(config, s, k, v, half, packed);
    for (Head& head : run_.heads) forward_head(config, s, packed.data(), head);
    EXPECT_TRUE(packed.guard_is_untouched()) << text(c_);
  }

  // Keys may begin with the first that is packed.
  void expect_the_same_behind(const ForwardConfig& config, const HeadShape& s, Matrix& k, Matrix& v,
                              std::int64_t first, Scratch& packed) {
    Scratch behind(engine_.packed_kv_bytes(config, s));
    const auto moved = [&](Matrix& tensor) {
      return static_cast<std::byte*>(tensor.data()) +
             first * tensor.stride() * bytes_of(c_.element);
    };
    engine_.pack_kv(config, s, {moved(k), moved(v), behind.data(), first, c_.sk, first});
    engine_.pack_kv(config, s, {k.data(), v.data(), behind.data(), 0, first});
    EXPECT_EQ(0, std::memcmp(packed.data(), behind.data(), engine_.packed_kv_bytes(config, s)))
        << text(c_);
  }

  void backward() {
    const HeadShape s = shape();
    const BackwardConfig config = tile<BackwardConfig>();
    Matrix k(c_.element, c_.sk, c_.d, k_row()), v(c_.element, c_.sk, c_.dv, v_row());
    Matrix dk = k, dv = v;
    k.fill(run_.k);
    v.fill(run_.v);
    Scratch packed_kv(engine_.backward_packed_kv_bytes(config, s));
    engine_.backward_pack_kv(config, s, {k.data(), v.data(), packed_kv.data(), 0, c_.sk});

    const std::size_t q_bytes = engine_.packed_q_bytes(config, s);
    const std::size_t floats = engine_.dq_sums_floats(config, s);
    const auto heads = static_cast<std::size_t>(c_.group);
    const auto splits = static_cast<std::size_t>(c_.splits);
    Scratch packed_q(q_bytes * heads), sums(floats * heads * splits * sizeof(float));
    Scratch scratch(engine_.backward_scratch_bytes(config, s));
    for (std::size_t h = 0; h < heads; ++h) {
      pack_head(config, s, packed_q.data() + h * q_bytes, run_.heads[h]);
    }
    auto* dq_sums = reinterpret_cast<float*>(sums.data());
    const std::int64_t blocks = (c_.sk + c_.block_k - 1) / c_.block_k;
    for (int split = 0; split < c_.splits; ++split) {
      engine_.backward_tile(
          config, s,
          {.packed_kv = packed_kv.data(),
           .packed_q = packed_q.data(),
           .packed_q_stride = q_bytes,
           .dq_sums = dq_sums + static_cast<std::size_t>(split) * floats,
           .dq_sums_stride = floats * splits,
           .group = c_.group,
           .dk = dk.data(),
           .dv = dv.data(),
           .scratch = scratch.data(),
           .key_begin = std::min<std::int64_t>(blocks * split / c_.splits * c_.block_k, c_.sk),
           .key_end =
               std::min<std::int64_t>(blocks * (split + 1) / c_.splits * c_.block_k, c_.sk)});
    }
    for (std::size_t h = 0; h < heads; ++h) {
      finish_head(config, s, dq_sums + h * floats * splits, floats, run_.heads[h]);
    }
    run_.dk = dk.values();
    run_.dv = dv.values();
    EXPECT_TRUE(dk.gaps_are_untouched() && dv.gaps_are_untouched()) << text(c_);
    EXPECT_TRUE(packed_kv.guard_is_untouched() && packed_q.guard_is_untouched() &&
                sums.guard_is_untouched() && scratch.guard_is_untouched())
        << text(c_);
  }

 private:
  int q_row() const { return c_.d + 8; }
  int k_row() const { return c_.d + 3; }
  int v_row() const { return c_.dv + 5; }
  int o_row() const { return c_.dv + 1; }

  HeadShape shape() const {
    return {.sq = c_.sq,
            .sk = c_.sk,
            .d = c_.d,
            .dv = c_.dv,
            .mask = c_.mask,
            .scale = c_.scale,
            .q_row = q_row(),
            .k_row = k_row(),
            .v_row = v_row(),
            .o_row = o_row()};
  }

  template <typename Config>
  Config tile() const {
    return {.target = engine_.target,
            .element = c_.element,
            .head_dim = c_.d,
            .value_dim = c_.dv,
            .block_q = c_.block_q,
            .block_k = c_.block_k};
  }

  void forward_head(const ForwardConfig& config, const HeadShape& s, const std::byte* packed,
                    Head& head) {
    Matrix q(c_.element, c_.sq, c_.d, q_row()), o(c_.element, c_.sq, c_.dv, o_row());
    q.fill(head.q);
    head.lse.assign(static_cast<std::size_t>(c_.sq), std::nanf(""));
    for (std::int64_t begin = 0; begin < c_.sq; begin += c_.block_q) {
      Scratch scratch(engine_.forward_scratch_bytes(config, s));
      engine_.forward_tile(config, s,
                           {q.data(), o.data(), head.lse.data(), packed, scratch.data(), begin,
                            std::min<std::int64_t>(begin + c_.block_q, c_.sq)});
      EXPECT_TRUE(scratch.guard_is_untouched()) << text(c_);
    }
    EXPECT_TRUE(o.gaps_are_untouched()) << text(c_);
    head.o = o.values();
  }

  void pack_head(const BackwardConfig& config, const HeadShape& s, std::byte* packed, Head& head) {
    Matrix q(c_.element, c_.sq, c_.d, q_row()), o(c_.element, c_.sq, c_.dv, o_row());
    Matrix d_o = o;
    q.fill(head.q);
    o.fill(head.o);
    d_o.fill(head.d_o);
    engine_.pack_q(config, s, {q.data(), o.data(), d_o.data(), head.lse.data(), packed, 0, c_.sq});
  }

  void finish_head(const BackwardConfig& config, const HeadShape& s, const float* sums,
                   std::size_t stride, Head& head) {
    Matrix dq(c_.element, c_.sq, c_.d, q_row());
    engine_.finish_dq(config, s, {sums, stride, c_.splits, dq.data(), 0, c_.sq});
    EXPECT_TRUE(dq.gaps_are_untouched()) << text(c_);
    head.dq = dq.values();
  }

  const Engine& engine_;
  Case c_;
  Tensors run_;
};

// max|out - truth| <= 2 max|naive - truth| + 2 max|(truth + 0.3 - 0.3) - truth|: as good as plain
// code of the element type, up to what one rounding at the values' size costs. `order` is what an
// fp32 sum inside may differ by when it runs in another order.
void expect_close(const char* name, DType type, const Floats& out, const std::vector<double>& truth,
                  const Floats& naive, const Case& c, double order = 0) {
  ASSERT_EQ(out.size(), truth.size());
  double error = 0, naive_error = 0, noise = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    ASSERT_TRUE(std::isfinite(out[i])) << name << "[" << i << "] of " << text(c);
    error = std::max(error, std::abs(static_cast<double>(out[i]) - truth[i]));
    naive_error = std::max(naive_error, std::abs(static_cast<double>(naive[i]) - truth[i]));
    const float there = round_to(type, static_cast<float>(truth[i]) + 0.3f);
    noise = std::max(noise, std::abs(static_cast<double>(round_to(type, there - 0.3f)) - truth[i]));
  }
  EXPECT_LE(error, 2 * naive_error + 2 * noise + order) << name << " of " << text(c);
}

void expect_lse(const Floats& out, const std::vector<double>& truth, const Case& c) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (std::isinf(truth[i])) {
      ASSERT_EQ(out[i], truth[i]) << "lse[" << i << "] of " << text(c);
      continue;
    }
    ASSERT_LE(std::abs(out[i] - truth[i]), 1e-5 * (1 + std::abs(truth[i])))
        << "lse[" << i << "] of " << text(c);
  }
}

template <typename Total, typename Part>
void add_to(Total& total, const Part& part) {
  for (std::size_t i = 0; i < total.size(); ++i) total[i] += part[i];
}

class EngineTest : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    const Verdict there = has(GetParam());
    if (!there) GTEST_SKIP() << there.reason;
  }

  static const Engine& engine() {
    switch (GetParam()) {
      case Target::cpu_avx2: return avx2_engine();
      case Target::cpu_avx512: return avx512_engine();
      default: return portable_engine();
    }
  }

  static void check(const Case& c) {
    Harness harness(engine(), c);
    const Tensors& run = harness.run();
    double order = 0;
    std::vector<double> dk, dv;
    Floats naive_dk, naive_dv;
    for (const Head& head : run.heads) {
      const Plain<double> truth(harness.plain_shape(), c.element, head.q, run.k, run.v, head.d_o);
      const Plain<float> naive(harness.plain_shape(), c.element, head.q, run.k, run.v, head.d_o);
      order = std::max(order, 0x1p-24 * truth.largest_dp);
      expect_lse(head.lse, truth.lse, c);
      expect_close("o", c.element, head.o, truth.o, naive.o, c);
      expect_close("dq", c.element, head.dq, truth.dq, naive.dq, c, order);
      dk.resize(truth.dk.size());
      dv.resize(truth.dv.size());
      naive_dk.resize(dk.size());
      naive_dv.resize(dv.size());
      add_to(dk, truth.dk);
      add_to(dv, truth.dv);
      add_to(naive_dk, naive.dk);
      add_to(naive_dv, naive.dv);
    }
    expect_close("dk", c.element, run.dk, dk, naive_dk, c, order);
    expect_close("dv", c.element, run.dv, dv, naive_dv, c);
  }

  static void check_types(Case c) {
    for (const DType type : {DType::fp32, DType::bf16, DType::fp16}) {
      c.element = type;
      check(c);
    }
  }
};

TEST_P(EngineTest, LengthsAroundATileAreExact) {
  for (const int s : {1, 15, 63, 64, 65, 130}) {
    check_types({.sq = s, .sk = s});
    check_types({.sq = s, .sk = s, .mask = kCausal});
  }
}

TEST_P(EngineTest, QueriesAndKeysMayDifferInNumber) {
  for (const Mask mask : {kFull, kCausal, Mask{10, 0}, Mask{7, 5}, Mask{-1, 3}, Mask{4, -1}}) {
    check_types({.sq = 1, .sk = 97, .mask = mask});
    check_types({.sq = 37, .sk = 200, .mask = mask, .block_q = 32, .block_k = 48});
    check_types({.sq = 150, .sk = 70, .mask = mask, .block_q = 24, .block_k = 32});
  }
}

TEST_P(EngineTest, HeadDimsNeedNotFillVectors) {
  for (const int d : {8, 40, 64, 72, 128, 256}) {
    check_types({.sq = 40, .sk = 70, .d = d, .dv = d, .mask = kCausal});
  }
  for (const int d : {264, 320, 512}) check_types({.sq = 20, .sk = 40, .d = d, .dv = d});
  check_types({.sq = 40, .sk = 70, .d = 512, .dv = 64, .mask = kCausal, .group = 2});
  check_types({.sq = 40, .sk = 70, .d = 24, .dv = 504, .mask = Mask{9, 5}});
  check_types({.sq = 40, .sk = 70, .d = 72, .dv = 24});
  check_types({.sq = 40, .sk = 70, .d = 16, .dv = 136, .mask = kCausal});
}

TEST_P(EngineTest, QueryHeadsOfAGroupShareKeysAndValues) {
  check_types({.sq = 70, .sk = 90, .mask = kCausal, .group = 3, .splits = 2});
}

TEST_P(EngineTest, TilesOfAnyLegalShapeAgree) {
  for (const int block_q : {8, 40, 96, 192}) {
    for (const int block_k : {16, 80, 128, 192}) {
      check_types({.sq = 200,
                   .sk = 210,
                   .d = 32,
                   .dv = 32,
                   .mask = kCausal,
                   .block_q = block_q,
                   .block_k = block_k});
    }
  }
}

TEST_P(EngineTest, DqSharesOfSeveralKeyRangesAddUp) {
  for (const int splits : {1, 2, 5}) {
    check_types({.sq = 100, .sk = 320, .mask = {90, 40}, .splits = splits});
  }
}

TEST_P(EngineTest, LargeLogitsAndNegativeScalesHold) {
  check_types({.sq = 70, .sk = 130, .mask = kCausal, .spread = 6});
  check_types({.sq = 70, .sk = 130, .mask = kCausal, .scale = -0.2f});
}

TEST_P(EngineTest, RowsThatSeeNothingGiveZeros) {
  for (const DType type : {DType::fp32, DType::bf16, DType::fp16}) {
    const Case c{.element = type, .sq = 100, .sk = 40, .mask = kCausal, .block_q = 32};
    Harness harness(engine(), c);
    const Tensors& run = harness.run();
    const Head& head = run.heads[0];
    for (std::size_t i = 0; i < 60 * 64; ++i) {
      ASSERT_EQ(head.o[i], 0.0f);
      ASSERT_EQ(head.dq[i], 0.0f);
    }
    for (std::size_t i = 0; i < 60; ++i) {
      ASSERT_EQ(head.lse[i], -std::numeric_limits<float>::infinity());
    }
    ASSERT_TRUE(std::isfinite(head.lse[60]));
  }
}

TEST_P(EngineTest, ANaNQueryPoisonsItsRowAndNoOther) {
  for (const DType type : {DType::fp32, DType::bf16, DType::fp16}) {
    const Case c{.element = type, .sq = 70, .sk = 130};
    Harness harness(engine(), c);
    harness.inputs().heads[0].q[5 * 64 + 3] = std::nanf("");
    harness.forward();
    const Head& head = harness.inputs().heads[0];
    for (std::size_t row = 0; row < 70; ++row) {
      ASSERT_EQ(std::isnan(head.lse[row]), row == 5) << row;
      ASSERT_EQ(std::isnan(head.o[row * 64]), row == 5) << row;
    }
  }
}

TEST_P(EngineTest, ANaNKeyPoisonsTheRowsThatSeeIt) {
  for (const DType type : {DType::fp32, DType::bf16, DType::fp16}) {
    const Case c{.element = type, .sq = 130, .sk = 130, .mask = kCausal};
    Harness harness(engine(), c);
    harness.inputs().k[90 * 64] = std::nanf("");
    harness.forward();
    const Head& head = harness.inputs().heads[0];
    for (std::size_t row = 0; row < 130; ++row) {
      ASSERT_EQ(std::isnan(head.lse[row]), row >= 90) << row;
      ASSERT_EQ(std::isnan(head.o[row * 64]), row >= 90) << row;
    }
  }
}

TEST_P(EngineTest, EqualCallsGiveEqualBits) {
  const Case c{
      .element = DType::bf16, .sq = 100, .sk = 200, .mask = kCausal, .group = 2, .splits = 3};
  Harness first(engine(), c), second(engine(), c);
  const Tensors &a = first.run(), &b = second.run();
  EXPECT_EQ(a.dk, b.dk);
  EXPECT_EQ(a.dv, b.dv);
  EXPECT_EQ(a.heads[1].dq, b.heads[1].dq);
  EXPECT_EQ(a.heads[1].o, b.heads[1].o);
}

INSTANTIATE_TEST_SUITE_P(Levels, EngineTest,
                         testing::Values(Target::cpu_portable, Target::cpu_avx2,
                                         Target::cpu_avx512),
                         [](const auto& level) { return std::string(name_of(level.param)); });

}  // namespace
}  // namespace dfa::cpu
