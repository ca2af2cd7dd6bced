#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "reference/backend.h"
#include "reference/head.h"
#include "tensors.h"

// The reference against attention spelled out element by element, sharing nothing with it: its own
// mask, its own head mapping, its own strides, no rearranged sums.
namespace dfa {
namespace {

bool visible(const Problem& p, std::int64_t i, std::int64_t j) {
  const std::int64_t aligned = i + p.sk - p.sq;
  if (p.mask.prefix > 0) return j < p.mask.prefix || j <= aligned;
  for (std::int64_t begin = 0; p.mask.chunk > 0; begin += p.mask.chunk) {
    if (aligned < begin) return false;
    if (aligned >= begin + p.mask.chunk) continue;
    if (j < begin || j >= begin + p.mask.chunk) return false;
    break;
  }
  return (p.mask.left < 0 || j >= aligned - p.mask.left) &&
         (p.mask.right < 0 || j <= aligned + p.mask.right);
}

class Spelled {
 public:
  explicit Spelled(const Tensors& tensors) : t_(tensors), p_(tensors.p) {}

  double q(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t x) const {
    return t_.at(t_.q, b * p_.q().batch + h * p_.q().head + i * p_.q().row + x);
  }
  double k(std::int64_t b, std::int64_t h, std::int64_t j, std::int64_t x) const {
    return t_.at(t_.k, b * p_.k().batch + key_head(h) * p_.k().head + j * p_.k().row + x);
  }
  double v(std::int64_t b, std::int64_t h, std::int64_t j, std::int64_t x) const {
    return t_.at(t_.v, b * p_.v().batch + key_head(h) * p_.v().head + j * p_.v().row + x);
  }
  double d_o(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t x) const {
    return t_.at(t_.d_o, b * p_.o().batch + h * p_.o().head + i * p_.o().row + x);
  }
  std::int64_t key_head(std::int64_t h) const {
    for (std::int64_t group = 1;; ++group) {  // the group that holds h
      if (h < group * p_.hq / p_.hk) return group - 1;
    }
  }

  double weight(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    if (!visible(p_, i, j)) return 0;
    double logit = 0;
    for (std::int64_t x = 0; x < p_.d; ++x) logit += q(b, h, i, x) * k(b, h, j, x);
    return std::exp(p_.softmax_scale() * logit);
  }
  double total(std::int64_t b, std::int64_t h, std::int64_t i) const {
    double sum = 0;
    for (std::int64_t j = 0; j < p_.sk; ++j) sum += weight(b, h, i, j);
    return sum;
  }
  double probability(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const double w = weight(b, h, i, j);
    return w == 0 ? 0 : w / total(b, h, i);
  }
  double d_probability(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    double sum = 0;
    for (std::int64_t x = 0; x < p_.dv; ++x) sum += d_o(b, h, i, x) * v(b, h, j, x);
    return sum;
  }
  // The softmax's derivative in full: sum over all keys of P_ij (1{j=n} - P_in) dP_in.
  double d_score(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const double here = probability(b, h, i, j);
    double sum = 0;
    for (std::int64_t n = 0; n < p_.sk; ++n) {
      sum += here * ((n == j ? 1.0 : 0.0) - probability(b, h, i, n)) * d_probability(b, h, i, n);
    }
    return sum;
  }

 private:
  const Tensors& t_;
  const Problem& p_;
};

void run(Tensors& t) {
  const Backend& reference = reference_backend();
  const Plan plan = reference.plan(t.p, {});
  reference.forward(plan, t.forward_args(), {});
  reference.backward(plan, t.backward_args(), {});
}

constexpr const char* kLines[] = {
    "fwdbwd fp32 b2 hq4 hk2 sq3 sk5 d8",
    "fwdbwd fp32 causal b1 hq3 hk1 sq5 sk5 d8 dv16",
    "fwdbwd fp32 causal b1 hq2 hk2 sq6 sk3 d8",
    "fwdbwd fp32 causal b1 hq2 hk2 sq2 sk6 d8",
    "fwdbwd fp32 causal b1 hq2 hk2 sq5 sk7 d8 chunk(3)",
    "fwdbwd fp32 b1 hq2 hk1 sq6 sk4 d8 window(-1,1) chunk(2)",
    "fwdbwd fp32 causal b1 hq2 hk2 sq5 sk7 d8 prefix(4)",
    "fwdbwd fp32 causal b1 hq2 hk2 sq6 sk3 d8 prefix(2)",
    "fwdbwd fp32 b1 hq1 hk1 sq6 sk6 d8 window(1,0)",
    "fwdbwd fp32 b1 hq1 hk1 sq7 sk4 d8 window(0,1)",
    "fwdbwd fp32 b1 hq1 hk1 sq4 sk7 d8 window(2,-1)",
    "fwdbwd fp32 b1 hq1 hk1 sq6 sk6 d8 window(-1,2) scale(-0.4)",
    "fwdbwd fp32 b2 hq2 hk1 sq3 sk4 d8 layout(bshd)",
    "fwdbwd fp32 b2 hq2 hk2 sq3 sk4 d8 strides_q(200,50,11) strides_k(90,45,9) "
    "strides_o(120,60,13)",
};

TEST(Definition, TheForwardIsTheDefinition) {
  for (const char* line : kLines) {
    Tensors t(line);
    const Spelled s(t);
    run(t);
    const Problem& p = t.p;
    for (std::int64_t n = 0; n < p.b * p.hq * p.sq; ++n) {
      const std::int64_t b = n / p.sq / p.hq, h = n / p.sq % p.hq, i = n % p.sq;
      for (std::int64_t x = 0; x < p.dv; ++x) {
        double sum = 0;
        for (std::int64_t j = 0; j < p.sk; ++j) sum += s.probability(b, h, i, j) * s.v(b, h, j, x);
        EXPECT_FLOAT_EQ(t.at(t.o, b * p.o().batch + h * p.o().head + i * p.o().row + x),
                        static_cast<float>(sum))
            << line;
      }
      EXPECT_FLOAT_EQ(t.lse[static_cast<std::size_t>(n)],
                      static_cast<float>(std::log(s.total(b, h, i))))
          << line;
    }
  }
}

TEST(Definition, TheBackwardIsTheDerivativeOfTheDefinition) {
  for (const char* line : kLines) {
    Tensors t(line);
    const Spelled s(t);
    run(t);
    const Problem& p = t.p;
    std::vector<double> dq(static_cast<std::size_t>(t.count(t.dq)));
    std::vector<double> dk(static_cast<std::size_t>(t.count(t.dk)));
    std::vector<double> dv(static_cast<std::size_t>(t.count(t.dv)));
    for (std::int64_t n = 0; n < p.b * p.hq * p.sq * p.sk; ++n) {
      const std::int64_t j = n % p.sk, i = n / p.sk % p.sq, h = n / p.sk / p.sq % p.hq,
                         b = n / p.sk / p.sq / p.hq, hk = s.key_head(h);
      const double ds = p.softmax_scale() * s.d_score(b, h, i, j);
      for (std::int64_t x = 0; x < p.d; ++x) {
        const auto q_at = b * p.q().batch + h * p.q().head + i * p.q().row + x;
        const auto k_at = b * p.k().batch + hk * p.k().head + j * p.k().row + x;
        dq[static_cast<std::size_t>(q_at)] += ds * s.k(b, h, j, x);
        dk[static_cast<std::size_t>(k_at)] += ds * s.q(b, h, i, x);
      }
      for (std::int64_t x = 0; x < p.dv; ++x) {
        const auto v_at = b * p.v().batch + hk * p.v().head + j * p.v().row + x;
        dv[static_cast<std::size_t>(v_at)] += s.probability(b, h, i, j) * s.d_o(b, h, i, x);
      }
    }
    const auto expect_same = [&](const std::vector<std::byte>& got,
                                 const std::vector<double>& right, const char* name) {
      for (std::int64_t n = 0; n < t.count(got); ++n) {
        const double value = t.at(got, n);
        if (std::isnan(value)) continue;  // a gap between strided rows; the poison tests watch it
        EXPECT_NEAR(value, right[static_cast<std::size_t>(n)], 1e-6) << name << " " << line;
      }
      EXPECT_FALSE(std::isnan(t.at(got, 0))) << name;
    };
    expect_same(t.dq, dq, "dq");
    expect_same(t.dk, dk, "dk");
    expect_same(t.dv, dv, "dv");
  }
}

// The shortcut that every backward takes: sum(do o) of a row is sum(P dP).
TEST(Definition, DeltaIsTheSumOfProbabilitiesAndTheirGradients) {
  for (const char* line : kLines) {
    Tensors t(line);
    const Spelled s(t);
    const Problem& p = t.p;
    for (std::int64_t h = 0; h < p.hq; ++h) {
      const Head<double> head(p, t.q.data(), t.k.data(), t.v.data(), t.d_o.data(), p.b - 1, h);
      for (std::int64_t i = 0; i < p.sq; ++i) {
        double sum = 0;
        for (std::int64_t j = 0; j < p.sk; ++j) {
          sum += s.probability(p.b - 1, h, i, j) * s.d_probability(p.b - 1, h, i, j);
        }
        EXPECT_NEAR(head.delta(i, head.forward(i).o), sum, 1e-12) << line;
      }
    }
  }
}

TEST(Definition, Tf32ProductsReadTenBitsOfWhatIsStored) {
  Tensors t("fwdbwd tf32 b1 hq1 hk1 sq3 sk5 d8"), rounded = t;
  rounded.p.dtype = DType::fp32;
  for (const auto tensor : {&Tensors::q, &Tensors::k, &Tensors::v, &Tensors::d_o}) {
    for (std::int64_t i = 0; i < t.count(t.*tensor); ++i) {
      const float value = 1.0003f * t.at(t.*tensor, i);
      store_element((t.*tensor).data(), DType::fp32, i, value);
      rounded.set(rounded.*tensor, i, round_to(DType::tf32, value));
    }
  }
  ASSERT_NE(std::memcmp(rounded.q.data(), t.q.data(), t.q.size()), 0);
  run(t);
  run(rounded);
  for (const auto tensor : {&Tensors::o, &Tensors::dq, &Tensors::dk, &Tensors::dv}) {
    EXPECT_EQ(t.*tensor, rounded.*tensor);
  }
}

TEST(Definition, TheReferenceSaysWhatItCannotDo) {
  const Backend& reference = reference_backend();
  const Problem p = parse_problem("fwd fp32 h1 s8 d8");
  EXPECT_FALSE(reference.supports(p, {.algorithm = Algorithm::flash}).ok);
  EXPECT_TRUE(reference.supports(p, {}).ok);
  EXPECT_THROW(reference.plan(p, {.config = "block_q=64"}), InvalidArgument);
  EXPECT_EQ(reference.plan(p, {}).workspace_bytes, 0u);
  EXPECT_EQ(reference.diagnostics().measure_ceilings(0, 1).bf16_flops, 0);
  EXPECT_EQ(reference.diagnostics().measure_ceilings(0, 1).threads, 1);
}

void expect_ranges_of(const Problem& p) {
  for (std::int64_t i = 0; i < p.sq; ++i) {
    for (std::int64_t j = 0; j < p.sk; ++j) {
      const bool row = p.mask.key_begin(i, p.sq, p.sk) <= j && j < p.mask.key_end(i, p.sq, p.sk);
      const bool column =
          p.mask.query_begin(j, p.sq, p.sk) <= i && i < p.mask.query_end(j, p.sq, p.sk);
      ASSERT_EQ(is_visible(p, i, j), row) << to_line(p) << " i " << i << " j " << j;
      ASSERT_EQ(is_visible(p, i, j), column) << to_line(p) << " i " << i << " j " << j;
    }
  }
}

// Engines find ranges by the arithmetic of dfa::Mask, the reference judges key by key.
TEST(Definition, EnginesRangesAreWhatTheReferenceSees) {
  for (const std::int64_t sq : {1, 2, 5, 9}) {
    for (const std::int64_t sk : {1, 3, 6}) {
      Problem p;
      p.sq = sq, p.sk = sk;
      for (long long left = -1; left < 12; ++left) {
        for (long long right = -1; right < 12; ++right) {
          for (long long chunk = 0; chunk < 8; ++chunk) {
            p.mask = {left, right, chunk};
            expect_ranges_of(p);
          }
        }
      }
      for (long long prefix = 1; prefix < 8; ++prefix) {
        p.mask = {-1, 0, 0, prefix};
        expect_ranges_of(p);
      }
    }
  }
}

}  // namespace
}  // namespace dfa
