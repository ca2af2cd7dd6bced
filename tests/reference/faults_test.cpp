#include <gtest/gtest.h>

#include "reference/backend.h"
#include "reference/check.h"
#include "reference/head.h"
#include "reference/tiled.h"
#include "reference/truths.h"

namespace dfa {
namespace {

// The tensors that the ruler calls wrong, each followed by a space.
std::string wrong_tensors(Tensors t, Fault fault, const CheckOptions& options = {}) {
  Tiled tiled(t, fault);
  tiled.forward();
  CheckReport report = check_forward(t.p, t.forward_args(), options);
  std::vector<TensorCheck> tensors = report.tensors;
  if (t.p.pass != Pass::forward) {
    tiled.backward();
    report = check_backward(t.p, t.backward_args(), options);
    tensors.insert(tensors.end(), report.tensors.begin(), report.tensors.end());
  }
  std::string names;
  for (const TensorCheck& tensor : tensors) {
    if (!tensor.ok) names += tensor.name + " ";
  }
  return names;
}

std::string wrong_tensors(const std::string& line, Fault fault, const CheckOptions& options = {},
                          std::uint64_t seed = 1) {
  return wrong_tensors(Tensors(line, seed), fault, options);
}

// Large enough to be sampled, small enough to run in no time.
constexpr CheckOptions kSampled{.max_flops = 3e6, .seed = 5};
constexpr const char* kCausal = "fwdbwd bf16 causal b1 hq4 hk2 sq90 sk90 d16";

TEST(Faults, ARightImplementationPassesInEveryTypeMaskAndSampling) {
  for (const char* type : {"fp32", "fp16", "bf16"}) {
    for (const char* rest : {"b2 hq2 hk1 sq60 sk70 d32", "causal b1 hq4 hk2 sq90 sk90 d16",
                             "causal b1 hq2 hk2 sq60 sk30 d16 dv24",
                             "b1 hq2 hk1 sq64 sk50 d16 window(9,4) layout(bshd)"}) {
      const std::string line = std::string("fwdbwd ") + type + " " + rest;
      EXPECT_EQ(wrong_tensors(line, Fault::none), "") << line;
      EXPECT_EQ(wrong_tensors(line, Fault::none, kSampled), "") << line;
    }
  }
}

struct Planted {
  Fault fault;
  const char* name;
  const char* suspects;  // at least one of these is called wrong
};

constexpr Planted kPlanted[] = {
    {Fault::dropped_tile, "dropped tile", "o lse"},
    {Fault::late_mask, "late mask", "o lse"},
    {Fault::early_mask, "early mask", "o lse"},
    {Fault::missing_rescale, "missing rescale", "o"},
    {Fault::missing_sum_rescale, "missing sum rescale", "o lse"},
    {Fault::unscaled_max, "unscaled max", "o lse"},
    {Fault::wrong_kv_head, "wrong kv head", "o lse"},
    {Fault::unwritten_row, "unwritten row", "o lse"},
    {Fault::unscaled_dq, "unscaled dq", "dq"},
    {Fault::unscaled_dk, "unscaled dk", "dk"},
    {Fault::missing_delta, "missing delta", "dq dk"},
    {Fault::dk_of_one_head, "dk of one head", "dk"},
    {Fault::dv_from_unmasked, "dv from unmasked", "dv"},
};

void expect_caught(const Planted& planted, const std::string& line, const CheckOptions& options) {
  const std::string wrong = wrong_tensors(line, planted.fault, options);
  std::string_view suspects = planted.suspects;
  bool caught = false;
  while (!suspects.empty()) {
    const std::string_view name = suspects.substr(0, suspects.find(' '));
    caught = caught || (" " + wrong).find(" " + std::string(name) + " ") != std::string::npos;
    suspects.remove_prefix(std::min(suspects.size(), name.size() + 1));
  }
  EXPECT_TRUE(caught) << planted.name << " in " << line << ": wrong are [" << wrong << "]";
}

TEST(Faults, EveryPlantedFaultIsCaughtInEveryType) {
  for (const char* type : {"fp32", "fp16", "bf16"}) {
    Truths truths;
    for (const Planted& planted : kPlanted) {
      expect_caught(planted, std::string("fwdbwd ") + type + " causal b1 hq4 hk2 sq90 sk90 d16",
                    {.truths = &truths});
    }
  }
}

TEST(Faults, EveryPlantedFaultIsCaughtByASample) {
  for (const Planted& planted : kPlanted) expect_caught(planted, kCausal, kSampled);
}

// What is known of the inputs stands for what would be calculated: the numbers of a report are the
// same, of outputs that are right and of others behind them.
TEST(Faults, KnownTruthsGiveTheReportOfNewOnes) {
  for (const char* line : {kCausal, "fwdbwd bf16 causal hq4 hk2 d16 lens(40,1,30) softcap(3) sink",
                           "fwdbwd fp32 b2 hq2 hk1 sq60 sk70 d32 bias(1,h)"}) {
    for (const CheckOptions& options : {CheckOptions{}, kSampled}) {
      Truths truths;
      CheckOptions knowing = options;
      knowing.truths = &truths;
      Tensors right(line);
      const Backend& reference = reference_backend();
      const Plan plan = reference.plan(right.p, {});
      reference.forward(plan, right.forward_args(), {});
      reference.backward(plan, right.backward_args(), {});
      Tensors wrong = right;
      wrong.set(wrong.o, 5, 9);
      wrong.set(wrong.dq, 6, 9);
      wrong.set(wrong.dv, 7, 9);
      for (Tensors* t : {&right, &wrong, &right}) {
        const CheckReport forward = check_forward(t->p, t->forward_args(), knowing);
        const CheckReport backward = check_backward(t->p, t->backward_args(), knowing);
        EXPECT_EQ(forward.summary(), check_forward(t->p, t->forward_args(), options).summary());
        EXPECT_EQ(backward.summary(), check_backward(t->p, t->backward_args(), options).summary());
        EXPECT_EQ(forward.ok && backward.ok, t == &right) << line;
      }
    }
  }
}

// Tensors whose elements are all alike, zeros and one-hot rows among them.
Tensors constant(const std::string& line, float q, float k, float v, float d_o) {
  Tensors t(line);
  for (auto [tensor, value] : {std::pair{&t.q, q}, {&t.k, k}, {&t.v, v}, {&t.d_o, d_o}}) {
    for (std::int64_t i = 0; i < t.count(*tensor); ++i) t.set(*tensor, i, value);
  }
  return t;
}

TEST(Faults, ConstantTensorsAreRightOrWrongLikeOthers) {
  for (const char* type : {"fp32", "fp16", "bf16"}) {
    for (const char* rest : {" b1 hq2 hk1 s100 d64", " causal b1 hq2 hk1 s100 d64",
                             " b1 h1 s33 d128", " b1 h2 sq7 sk1 d16"}) {
      const std::string line = std::string("fwdbwd ") + type + rest;
      for (const Tensors& t :
           {constant(line, 0, 0, 0.3f, 0), constant(line, 0.3f, 0.3f, 0.3f, 0.3f),
            constant(line, 0.3f, 0.7f, 0.3f, 0.7f), constant(line, 0, 0, 0, 0),
            constant(line, 1, 1, 1, 1)}) {
        EXPECT_EQ(wrong_tensors(t, Fault::none), "") << line;
      }
    }
    const Tensors t = constant(std::string("fwdbwd ") + type + " causal b1 hq4 hk2 sq90 sk90 d16",
                               0.3f, 0.7f, 0.3f, 0.7f);
    for (const auto& [fault, name] : {std::pair{Fault::dropped_tile, "lse"},
                                      {Fault::late_mask, "lse"},
                                      {Fault::missing_delta, "dq"},
                                      {Fault::unwritten_row, "o"},
                                      {Fault::dv_from_unmasked, "dv"}}) {
      EXPECT_NE((" " + wrong_tensors(t, fault)).find(std::string(" ") + name + " "),
                std::string::npos)
          << type << " " << name;
    }
  }
}

// Scores of hundreds, of which some cancel to nearly nothing. In 24 bits no sum of 256 terms gives
// all of their lse to 1e-5: naive sums in other orders do not either, and say how far off is right.
constexpr const char* kSteep = "fwd bf16 b1 h2 sq500 sk1 d256 scale(20)";

TEST(Faults, ASteepProblemIsRightAsFarAsNaiveSumsAre) {
  int beyond = 0;  // of what a row allows by itself
  for (std::uint64_t seed = 20; seed < 30; ++seed) {
    Tensors t(kSteep, seed);
    Tiled(t, Fault::none).forward();
    const CheckReport report = check_forward(t.p, t.forward_args());
    EXPECT_TRUE(report.ok) << "seed " << seed << "\n" << report.summary();
    for (const TensorCheck& lse : report.tensors) {
      if (lse.name != "lse") continue;
      EXPECT_LT(lse.bound, 1e-3) << seed;
      const Head<double> truth(t.p, t.q.data(), t.k.data(), t.v.data(), nullptr, 0, 0);
      for (std::int64_t i = 0; i < t.p.sq; ++i) {
        const double right = truth.forward(i).lse;
        const double error =
            std::fabs(static_cast<double>(t.lse[static_cast<std::size_t>(i)]) - right);
        beyond += error > 1e-5 * (1 + std::fabs(right));
      }
    }
  }
  EXPECT_GT(beyond, 0);
}

TEST(Faults, PlantedFaultsAreCaughtInASteepProblem) {
  for (const char* line : {"fwdbwd bf16 causal b1 hq4 hk2 sq90 sk90 d64 scale(20)",
                           "fwdbwd fp32 causal b1 hq4 hk2 sq90 sk90 d64 scale(20)"}) {
    EXPECT_EQ(wrong_tensors(line, Fault::none), "") << line;
    for (const Fault fault : {Fault::dropped_tile, Fault::late_mask, Fault::early_mask,
                              Fault::unscaled_max, Fault::unwritten_row}) {
      EXPECT_NE(wrong_tensors(line, fault).find("lse "), std::string::npos)
          << static_cast<int>(fault) << " in " << line;
    }
  }
}

// The faults above touch what they should and leave the rest right, else a catch proves little.
TEST(Faults, AFaultOfOneGradientLeavesTheOthersRight) {
  EXPECT_EQ(wrong_tensors(kCausal, Fault::unscaled_dq), "dq ");
  EXPECT_EQ(wrong_tensors(kCausal, Fault::unscaled_dk), "dk ");
  EXPECT_EQ(wrong_tensors(kCausal, Fault::dk_of_one_head), "dk ");
}

TEST(Faults, ALogSumExpOffByTwiceItsBoundIsCaughtAndByHalfIsNot) {
  for (const auto& [off, wrong] : {std::pair{0.5e-5f, ""}, {2e-5f, "lse"}}) {
    for (const std::size_t row : {std::size_t{0}, std::size_t{45}, std::size_t{89}}) {
      Tensors t("fwd fp32 causal b1 hq1 hk1 sq90 sk90 d16");
      Tiled(t, Fault::none).forward();
      t.lse[row] += off * (1 + std::fabs(t.lse[row]));
      const CheckReport report = check_forward(t.p, t.forward_args());
      EXPECT_EQ(report.ok ? "" : report.worst().name, wrong) << row << " " << report.summary();
    }
  }
}

TEST(Faults, ALogSumExpOffByAThousandthIsCaughtInASteepProblem) {
  for (const std::size_t row : {std::size_t{0}, std::size_t{56}, std::size_t{199}}) {
    Tensors t(kSteep, 25);
    Tiled(t, Fault::none).forward();
    t.lse[row] += 1e-3f * (1 + std::fabs(t.lse[row]) / 100);
    const CheckReport report = check_forward(t.p, t.forward_args());
    EXPECT_EQ(report.ok ? "" : report.worst().name, "lse") << row << " " << report.summary();
  }
}

}  // namespace
}  // namespace dfa
