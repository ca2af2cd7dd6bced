#include "cpu/standard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/element.h"
#include "cpu/cpuid.h"
#include "cpu/plain_attention.h"
#include "spec/config_names.h"
#include "tensors.h"

namespace dfa::cpu {
namespace {

using test::Plain;
using test::PlainShape;
using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;

constexpr std::byte kUntouched{0xff};

// Scratch of exactly the bytes asked for, full of NaN, with guard bytes after its end.
class Workspace {
 public:
  Workspace(const Problem& p, Target target, int threads)
      : bytes_(standard_workspace_bytes(p, target, threads)), buffer_(bytes_ + kGuard) {
    std::memset(buffer_.data(), 0xff, bytes_ + kGuard);
  }
  void* data() { return buffer_.data(); }
  bool guard_is_untouched() const {
    const auto* end = buffer_.as<std::byte>() + bytes_;
    return std::all_of(end, end + kGuard, [](std::byte b) { return b == kUntouched; });
  }

 private:
  static constexpr std::size_t kGuard = 256;
  std::size_t bytes_;
  AlignedBuffer buffer_;
};

void run_forward(Tensors& t, Target target, int threads) {
  Workspace space(t.p, target, threads);
  ForwardArgs args = t.forward_args();
  args.workspace = space.data();
  standard_forward(t.p, target, threads, args);
  EXPECT_TRUE(space.guard_is_untouched()) << to_line(t.p);
}

void run_backward(Tensors& t, Target target, int threads) {
  Workspace space(t.p, target, threads);
  BackwardArgs args = t.backward_args();
  args.workspace = space.data();
  standard_backward(t.p, target, threads, args);
  EXPECT_TRUE(space.guard_is_untouched()) << to_line(t.p);
}

void run(Tensors& t, Target target, int threads = 2) {
  run_forward(t, target, threads);
  run_backward(t, target, threads);
}

// One head of a tensor, dense.
Floats head(const Tensors& t, const Bytes& data, const Strides& at, std::int64_t b, std::int64_t h,
            std::int64_t rows, std::int64_t dim) {
  Floats out;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t x = 0; x < dim; ++x) {
      out.push_back(t.at(data, b * at.batch + h * at.head + i * at.row + x));
    }
  }
  return out;
}

bool gaps_are_untouched(const Tensors& t, const Bytes& data, const Strides& at, std::int64_t heads,
                        std::int64_t rows, std::int64_t dim) {
  const int size = bytes_of(t.p.dtype);
  std::vector<bool> inside(data.size() / static_cast<std::size_t>(size), false);
  for (std::int64_t b = 0; b < t.p.b; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < rows; ++i) {
        const auto first = static_cast<std::size_t>(b * at.batch + h * at.head + i * at.row);
        std::fill_n(inside.begin() + static_cast<std::ptrdiff_t>(first), dim, true);
      }
    }
  }
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (!inside[i / static_cast<std::size_t>(size)] && data[i] != kUntouched) return false;
  }
  return true;
}

// A whole tensor beside its truth and what plain code of the element type makes of it.
struct Compared {
  Floats out, naive;
  std::vector<double> truth;

  void append(const Floats& o, const Floats& n, const std::vector<double>& t) {
    out.insert(out.end(), o.begin(), o.end());
    naive.insert(naive.end(), n.begin(), n.end());
    truth.insert(truth.end(), t.begin(), t.end());
  }
};

// max|out - truth| <= 2 max|naive - truth| + 2 max|(truth + 0.3 - 0.3) - truth| + order, over the
// tensor: as good as plain code, up to one rounding at the values' size and the order of a sum.
void expect_close(const char* name, const Problem& p, const Compared& c, double order = 0) {
  ASSERT_EQ(c.out.size(), c.truth.size());
  double error = 0, naive_error = 0, noise = 0;
  for (std::size_t i = 0; i < c.out.size(); ++i) {
    ASSERT_TRUE(std::isfinite(c.out[i])) << name << "[" << i << "] of " << to_line(p);
    error = std::max(error, std::abs(static_cast<double>(c.out[i]) - c.truth[i]));
    naive_error = std::max(naive_error, std::abs(static_cast<double>(c.naive[i]) - c.truth[i]));
    const float there = round_to(p.dtype, static_cast<float>(c.truth[i]) + 0.3f);
    const float back = round_to(p.dtype, there - 0.3f);
    noise = std::max(noise, std::abs(static_cast<double>(back) - c.truth[i]));
  }
  EXPECT_LE(error, 2 * naive_error + 2 * noise + order) << name << " of " << to_line(p);
}

void expect_lse(const Tensors& t, std::int64_t first, const std::vector<double>& truth) {
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const float out = t.lse[static_cast<std::size_t>(first) + i];
    if (std::isinf(truth[i])) {
      ASSERT_EQ(out, truth[i]) << "lse[" << i << "] of " << to_line(t.p);
    } else {
      ASSERT_LE(std::abs(out - truth[i]), 1e-5 * (1 + std::abs(truth[i])))
          << "lse[" << i << "] of " << to_line(t.p);
    }
  }
}

template <typename Total, typename Part>
void add_to(Total& total, const Part& part) {
  total.resize(part.size());
  for (std::size_t i = 0; i < part.size(); ++i) total[i] += part[i];
}

struct Comparison {
  Compared o, dq, dk, dv;
  double order = 0;  // of the sum in dP, which dP - delta leaves in dq and dk
};

// The heads of one group beside the definition.
void add_group(Comparison& all, const Tensors& t, std::int64_t b, std::int64_t hk) {
  const Problem& p = t.p;
  const Floats k = head(t, t.k, p.k(), b, hk, p.sk, p.d);
  const Floats v = head(t, t.v, p.v(), b, hk, p.sk, p.dv);
  const PlainShape shape{static_cast<int>(p.sq),
                         static_cast<int>(p.sk),
                         static_cast<int>(p.d),
                         static_cast<int>(p.dv),
                         p.mask,
                         static_cast<float>(p.softmax_scale())};
  const std::int64_t group = p.hq / p.hk;
  std::vector<double> dk, dv;
  Floats naive_dk, naive_dv;
  for (std::int64_t h = hk * group; h < (hk + 1) * group; ++h) {
    const Floats q = head(t, t.q, p.q(), b, h, p.sq, p.d);
    const Floats d_o = head(t, t.d_o, p.o(), b, h, p.sq, p.dv);
    const Plain<double> truth(shape, p.dtype, q, k, v, d_o);
    const Plain<float> naive(shape, p.dtype, q, k, v, d_o);
    all.order = std::max(all.order, 0x1p-24 * truth.largest_dp);
    expect_lse(t, (b * p.hq + h) * p.sq, truth.lse);
    all.o.append(head(t, t.o, p.o(), b, h, p.sq, p.dv), naive.o, truth.o);
    all.dq.append(head(t, t.dq, p.q(), b, h, p.sq, p.d), naive.dq, truth.dq);
    add_to(dk, truth.dk), add_to(dv, truth.dv);
    add_to(naive_dk, naive.dk), add_to(naive_dv, naive.dv);
  }
  all.dk.append(head(t, t.dk, p.k(), b, hk, p.sk, p.d), naive_dk, dk);
  all.dv.append(head(t, t.dv, p.v(), b, hk, p.sk, p.dv), naive_dv, dv);
}

void expect_truth(const Tensors& t) {
  const Problem& p = t.p;
  Comparison all;
  for (std::int64_t b = 0; b < p.b; ++b) {
    for (std::int64_t hk = 0; hk < p.hk; ++hk) add_group(all, t, b, hk);
  }
  expect_close("o", p, all.o);
  expect_close("dq", p, all.dq, all.order);
  expect_close("dk", p, all.dk, all.order);
  expect_close("dv", p, all.dv);
  EXPECT_TRUE(gaps_are_untouched(t, t.o, p.o(), p.hq, p.sq, p.dv)) << to_line(p);
  EXPECT_TRUE(gaps_are_untouched(t, t.dq, p.q(), p.hq, p.sq, p.d)) << to_line(p);
  EXPECT_TRUE(gaps_are_untouched(t, t.dk, p.k(), p.hk, p.sk, p.d)) << to_line(p);
  EXPECT_TRUE(gaps_are_untouched(t, t.dv, p.v(), p.hk, p.sk, p.dv)) << to_line(p);
}

class StandardTest : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    const Verdict there = has(GetParam());
    if (!there) GTEST_SKIP() << there.reason;
  }

  static void check(const std::string& sizes) {
    for (const char* type : {"fp32", "bf16", "fp16"}) {
      Tensors t(std::string("fwdbwd ") + type + " " + sizes);
      run(t, GetParam());
      expect_truth(t);
    }
  }
};

TEST_P(StandardTest, LengthsAroundTheBlocksAreExact) {
  for (const char* s : {"s1", "s15", "s64", "s65"}) {
    check(std::string(s) + " b1 h1 d64");
    check(std::string("causal ") + s + " b1 h1 d64");
  }
  check("sq63 sk255 b1 h1 d16");
  check("causal sq257 sk513 b1 h1 d16");
}

TEST_P(StandardTest, QueriesAndKeysMayDifferInNumber) {
  for (const char* mask :
       {"", "causal ", "window(10,0) ", "window(7,5) ", "window(-1,3) ", "window(4,-1) "}) {
    check(std::string(mask) + "sq1 sk97 b1 h1 d32");
    check(std::string(mask) + "sq37 sk130 b1 h1 d32");
    check(std::string(mask) + "sq130 sk37 b1 h1 d32");
  }
}

TEST_P(StandardTest, HeadDimsNeedNotFillVectorsNorBeEqual) {
  for (const char* dims : {"d8", "d40", "d72", "d256", "d72 dv24", "d16 dv136", "d256 dv8", "d264",
                           "d512", "d512 dv64", "d24 dv504"}) {
    check(std::string("causal sq40 sk70 b1 h1 ") + dims);
  }
}

TEST_P(StandardTest, QueryHeadsOfAGroupShareKeysAndValues) {
  check("causal b2 hq6 hk2 sq70 sk90 d24");
  check("b2 hq3 hk1 sq70 sk90 d24");
}

TEST_P(StandardTest, LargeLogitsAndNegativeScalesHold) {
  check("causal b1 h1 sq70 sk130 d64 scale(3)");
  check("causal b1 h1 sq70 sk130 d64 scale(-0.2)");
}

TEST_P(StandardTest, StridesAreFollowedAndGapsLeftAlone) {
  check("causal b2 h3 s40 d24 layout(bshd)");
  check(
      "b2 hq4 hk2 sq33 sk50 d24 dv16 strides_q(5000,1100,31) strides_k(4001,2000,37) "
      "strides_v(17,1900,35) strides_o(4500,19,80)");
}

TEST_P(StandardTest, RowsThatSeeNothingGiveZeros) {
  for (const char* type : {"fp32", "bf16", "fp16"}) {
    Tensors t(std::string("fwdbwd ") + type + " causal b1 h1 sq100 sk40 d16");
    run(t, GetParam());
    for (std::int64_t i = 0; i < 60; ++i) {
      ASSERT_EQ(t.lse[static_cast<std::size_t>(i)], -std::numeric_limits<float>::infinity());
      for (std::int64_t x = 0; x < 16; ++x) {
        ASSERT_EQ(t.at(t.o, i * 16 + x), 0.0f) << i;
        ASSERT_EQ(t.at(t.dq, i * 16 + x), 0.0f) << i;
      }
    }
    expect_truth(t);
  }
}

TEST_P(StandardTest, KeysThatNobodySeesGetNoGradient) {
  Tensors t("fwdbwd fp32 window(3,0) b1 h1 sq10 sk40 d16");
  run(t, GetParam());
  for (std::int64_t i = 0; i < 27 * 16; ++i) {
    ASSERT_EQ(t.at(t.dk, i), 0.0f) << i;
    ASSERT_EQ(t.at(t.dv, i), 0.0f) << i;
  }
  EXPECT_NE(t.at(t.dv, 27 * 16), 0.0f);
}

TEST_P(StandardTest, LseMayBeLeftOut) {
  Tensors with("fwd bf16 causal b1 h2 sq70 sk90 d32"), without = with;
  run_forward(with, GetParam(), 1);
  Workspace space(without.p, GetParam(), 1);
  ForwardArgs args = without.forward_args();
  args.lse = nullptr;
  args.workspace = space.data();
  standard_forward(without.p, GetParam(), 1, args);
  EXPECT_EQ(with.o, without.o);
  EXPECT_TRUE(std::isnan(without.lse.front()));
}

TEST_P(StandardTest, AnyNumberOfThreadsGivesTheSameBits) {
  Tensors one("fwdbwd fp16 causal b2 hq4 hk2 sq150 sk170 d40"), five = one;
  run(one, GetParam(), 1);
  run(five, GetParam(), 5);
  EXPECT_EQ(one.o, five.o);
  EXPECT_EQ(one.lse, five.lse);
  EXPECT_EQ(one.dq, five.dq);
  EXPECT_EQ(one.dk, five.dk);
  EXPECT_EQ(one.dv, five.dv);
}

TEST_P(StandardTest, ANanInAQueryReachesItsRowAndNoOther) {
  Tensors t("fwdbwd fp32 b1 h1 sq70 sk90 d16");
  constexpr std::int64_t kRow = 66;
  t.set(t.q, kRow * 16 + 5, std::nanf(""));
  run(t, GetParam());
  for (std::int64_t i = 0; i < 70; ++i) {
    EXPECT_EQ(std::isnan(t.lse[static_cast<std::size_t>(i)]), i == kRow) << i;
    EXPECT_EQ(std::isnan(t.at(t.o, i * 16)), i == kRow) << i;
    EXPECT_EQ(std::isnan(t.at(t.dq, i * 16)), i == kRow) << i;
  }
  EXPECT_TRUE(std::isnan(t.at(t.dk, 0)) && std::isnan(t.at(t.dv, 0)));
}

TEST_P(StandardTest, ANanInAKeyReachesTheRowsThatSeeIt) {
  for (const std::int64_t key : {0, 17, 69}) {
    Tensors t("fwd fp32 causal b1 h1 s70 d16");
    t.set(t.k, key * 16 + 3, std::nanf(""));
    run_forward(t, GetParam(), 2);
    for (std::int64_t i = 0; i < 70; ++i) {
      EXPECT_EQ(std::isnan(t.at(t.o, i * 16)), i >= key) << "key " << key << " row " << i;
      EXPECT_EQ(std::isnan(t.lse[static_cast<std::size_t>(i)]), i >= key) << key << " " << i;
    }
  }
}

TEST_P(StandardTest, TheBackwardIgnoresValuesThatARowDoesNotSee) {
  Tensors t("fwdbwd fp32 window(20,0) b1 h1 s70 d16");
  run_forward(t, GetParam(), 2);
  constexpr std::int64_t kKey = 35;
  t.set(t.v, kKey * 16 + 3, std::nanf(""));
  run_backward(t, GetParam(), 2);
  for (std::int64_t i = 0; i < 70; ++i) {
    const bool sees = i >= kKey && i <= kKey + 20;
    EXPECT_EQ(std::isnan(t.at(t.dq, i * 16)), sees) << i;
  }
}

TEST_P(StandardTest, WorkspaceHoldsTheMatricesOfEveryHead) {
  const auto bytes = [](const std::string& pass) {
    return standard_workspace_bytes(parse_problem(pass + " bf16 b2 hq6 hk1 sq512 sk1024 d8"),
                                    GetParam(), 1);
  };
  constexpr std::size_t kMatrix = std::size_t{4} * 2 * 6 * 512 * 1024;
  EXPECT_GE(bytes("fwd"), kMatrix);
  EXPECT_LE(bytes("fwd"), kMatrix * 5 / 4);
  EXPECT_GE(bytes("bwd"), 2 * kMatrix);
  EXPECT_LE(bytes("bwd"), 2 * kMatrix * 5 / 4);
  EXPECT_EQ(bytes("fwdbwd"), std::max(bytes("fwd"), bytes("bwd")));
}

INSTANTIATE_TEST_SUITE_P(Targets, StandardTest, testing::ValuesIn(kTargets),
                         [](const auto& target) { return std::string(name_of(target.param)); });

}  // namespace
}  // namespace dfa::cpu
