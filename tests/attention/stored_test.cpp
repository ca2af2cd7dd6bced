// Probabilities that the forward keeps for the backward.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "attention/variants.h"
#include "base/aligned.h"

namespace dfa {
namespace {

const Variant kStored{"stored", {.config = "StandardConfig{.probabilities=Probabilities::stored}"}};

// Memory of a plan's probabilities, full of NaN, with guard bytes after its end.
class Kept {
 public:
  explicit Kept(const Plan& plan)
      : bytes_(plan.probabilities_bytes), buffer_(plan.probabilities_bytes + kGuard) {
    std::memset(buffer_.data(), 0xff, bytes_ + kGuard);
  }
  void* data() { return buffer_.data(); }
  bool guard_is_whole() const {
    const auto* end = buffer_.as<unsigned char>() + bytes_;
    return std::all_of(end, end + kGuard, [](unsigned char byte) { return byte == 0xff; });
  }
  std::string bits() const { return {buffer_.as<char>(), bytes_}; }

 private:
  static constexpr std::size_t kGuard = 256;
  std::size_t bytes_;
  AlignedBuffer buffer_;
};

void run(Tensors& t, const Plan& plan, Kept& kept) {
  ForwardArgs forward_args = t.forward_args();
  forward_args.probabilities = kept.data();
  forward(plan, forward_args);
  BackwardArgs backward_args = t.backward_args();
  backward_args.probabilities = kept.data();
  backward(plan, backward_args);
}

TEST(Stored, TheGradientsOfEveryProblemOfTheFilesMeetTheRule) {
  int problems = 0;
  for (const char* file : {"test_quick.txt", "regressions.txt"}) {
    for (const std::string& line : problem_lines(file)) {
      if (line.rfind("fwdbwd", 0) != 0) continue;
      Tensors t(line, 7);
      const Plan plan = dfa::plan(t.p, kStored.options);
      Kept kept(plan);
      run(t, plan, kept);
      EXPECT_EQ(fault(t, kStored, 7), "") << line;
      EXPECT_TRUE(kept.guard_is_whole()) << line;
      ++problems;
    }
  }
  EXPECT_GE(problems, 10);
}

TEST(Stored, TheForwardIsThatOfStandardAttentionToTheLastBit) {
  Tensors stored("fwdbwd bf16 causal b1 hq4 hk2 sq70 sk90 d32"), other = stored;
  const Plan plan = dfa::plan(stored.p, kStored.options);
  Kept kept(plan);
  run(stored, plan, kept);
  dfa::run(other, {.algorithm = Algorithm::standard});
  EXPECT_EQ(stored.o, other.o);
  EXPECT_EQ(stored.lse, other.lse);
}

// So that one forward serves several backwards, and no two of them are in each other's way.
TEST(Stored, TheBackwardReadsAndDoesNotWrite) {
  Tensors t("fwdbwd fp32 causal b1 hq2 hk1 sq130 sk70 d24");
  const Plan plan = dfa::plan(t.p, kStored.options);
  Kept kept(plan);
  run(t, plan, kept);
  const std::string before = kept.bits();
  const auto dq = t.dq;
  BackwardArgs again = t.backward_args();
  again.probabilities = kept.data();
  backward(plan, again);
  EXPECT_EQ(kept.bits(), before);
  EXPECT_EQ(t.dq, dq);
}

// The planted fault: what the backward takes for P is what it is given.
TEST(Stored, OtherProbabilitiesGiveOtherGradients) {
  if (!kJudged) GTEST_SKIP() << "values are not judged in this build";
  Tensors t("fwdbwd fp32 b1 h2 s65 d32");
  const Plan plan = dfa::plan(t.p, kStored.options);
  Kept kept(plan);
  run(t, plan, kept);
  BackwardArgs args = t.backward_args();
  AlignedBuffer zeros(plan.probabilities_bytes);
  std::memset(zeros.data(), 0, plan.probabilities_bytes);
  args.probabilities = zeros.data();
  backward(plan, args);
  EXPECT_NE(fault(t, kStored, 1), "");
}

TEST(Stored, ThePlanSaysWhatIsKeptAndWhatNot) {
  const Problem p = parse_problem("fwdbwd fp32 b2 hq4 hk2 sq100 sk70 d64");
  const Plan stored = dfa::plan(p, kStored.options);
  const Plan recomputed = dfa::plan(p, {.algorithm = Algorithm::standard});
  EXPECT_EQ(stored.algorithm, Algorithm::standard);
  EXPECT_EQ(stored.probabilities_bytes, std::size_t{4} * 2 * 4 * 100 * 80);  // whole cache lines
  EXPECT_EQ(stored.config, kStored.options.config);
  EXPECT_EQ(stored.backward_config, kStored.options.config);
  EXPECT_LT(stored.workspace_bytes, recomputed.workspace_bytes);
  EXPECT_NE(stored.why.find("keeps for the backward"), std::string::npos) << stored.why;
  EXPECT_EQ(recomputed.probabilities_bytes, 0u);
}

TEST(Stored, APlaceThatIsMissingOrMisalignedIsNamedWithItsSize) {
  Tensors t("fwdbwd fp32 b1 h1 s16 d8");
  const Plan plan = dfa::plan(t.p, kStored.options);
  const auto reason = [&](void* place) -> std::string {
    try {
      ForwardArgs args = t.forward_args();
      args.probabilities = place;
      forward(plan, args);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(reason(nullptr).find("probabilities is null; this plan stores 1024 bytes"),
            std::string::npos)
      << reason(nullptr);
  EXPECT_NE(reason(t.q.data() + 1).find("64 bytes"), std::string::npos);
  EXPECT_THROW(backward(plan, t.backward_args()), InvalidArgument);
  // Where nothing is stored nothing is looked at.
  ForwardArgs args = t.forward_args();
  args.probabilities = t.q.data() + 1;
  forward(dfa::plan(t.p, {.algorithm = Algorithm::standard}), args);
  EXPECT_TRUE(check_forward(t.p, t.forward_args(), {}).ok);
}

}  // namespace
}  // namespace dfa
