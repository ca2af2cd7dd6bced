// What is run before a text's first use, by a backend that is right and by some that are not.
#include "attention/text_check.h"

#include <gtest/gtest.h>

#include <string>

#include "attention/registry.h"
#include "attention/variants.h"
#include "base/element.h"

namespace dfa {
namespace {

// The CPU's, which counts its calls, and of which one output is off where a test says so.
class Faulty final : public Backend {
 public:
  explicit Faulty(std::string what) : what_(std::move(what)) {}

  std::string name() const override { return "faulty " + what_; }
  std::string description() const override { return cpu().description(); }
  Verdict available() const override { return cpu().available(); }
  Limits limits() const override { return cpu().limits(); }
  Verdict supports(const Problem& p, const PlanOptions& options) const override {
    return cpu().supports(p, options);
  }
  Plan plan(const Problem& p, const PlanOptions& options) const override {
    config = options.config;
    return cpu().plan(what_ == "text" ? with_other_text(p) : p, {.backend = "cpu"});
  }
  void forward(const Plan& plan, const ForwardArgs& args, Queue queue) const override {
    ++calls;
    cpu().forward(plan, args, queue);
    if (what_ == "o") shift(args.o, plan.problem.o_dtype());
  }
  void backward(const Plan& plan, const BackwardArgs& args, Queue queue) const override {
    ++calls;
    cpu().backward(plan, args, queue);
    if (what_ == "dk") shift(args.dk, plan.problem.dtype);
  }
  const Device& device() const override { return cpu().device(); }
  const Diagnostics& diagnostics() const override { return cpu().diagnostics(); }

  mutable int calls = 0;
  mutable std::string config;  // that was asked for last

 private:
  static const Backend& cpu() { return find_backend("cpu"); }
  static Problem with_other_text(Problem p) {
    p.score_mod = "score*0.25f*score+0.01f";  // o is that of another: a constant more is nothing
    return p;
  }
  static void shift(void* tensor, DType type) {
    store_element(tensor, type, 3, load_element(tensor, type, 3) + 0.5F);
  }

  std::string what_;
};

constexpr const char* kLine =
    "fwdbwd bf16 causal hq6 hk3 d64 lens(900,3) sink mask_mod(kv_idx<=q_idx) score_mod(score*0.5f)";

TEST(TextCheck, RunsOnceForATextAndType) {
  const Faulty right("nothing");
  Problem p = parse_problem(kLine);
  require_right_texts(right, p);
  EXPECT_EQ(right.calls, 2);
  require_right_texts(right, p);
  EXPECT_EQ(right.calls, 2);
  p.pass = Pass::forward;
  require_right_texts(right, p);
  EXPECT_EQ(right.calls, 3);
  p.score_mod = "score*2";
  require_right_texts(right, p);
  EXPECT_EQ(right.calls, 4);
}

// Of each kind of kernels that a plan has, not of those that a small problem would take.
TEST(TextCheck, RunsOnTheKernelsOfThePlan) {
  Plan plan;
  EXPECT_EQ(kernels_named(plan), "");
  plan.backward_config = "BackwardConfig{.target=Target::cuda_sm80,.element=DType::bf16}";
  EXPECT_EQ(kernels_named(plan), "BackwardConfig{target=Target::cuda_sm80}");
  plan.config = "ForwardConfig{.target=Target::cuda_sm90,.element=DType::bf16,.text=true}";
  EXPECT_EQ(kernels_named(plan), "ForwardConfig{target=Target::cuda_sm90}");
  const Faulty right("of other kernels");
  Problem p = parse_problem(kLine);
  p.pass = Pass::forward;
  require_right_texts(right, p);
  EXPECT_EQ(right.calls, 1);
  for (int turn = 0; turn < 2; ++turn) {
    require_right_texts(right, p, kernels_named(plan));
    EXPECT_EQ(right.calls, 2);
    EXPECT_EQ(right.config, kernels_named(plan));
  }
}

TEST(TextCheck, WrongNumbersAreRefusedEachTime) {
  for (const char* what : {"o", "dk", "text"}) {
    const Faulty wrong(what);
    for (int turn = 0; turn < 2; ++turn) {
      const std::string text =
          message<Unsupported>([&] { require_right_texts(wrong, parse_problem(kLine)); });
      EXPECT_NE(text.find(std::string("backend faulty ") + what +
                          ": 'fwdbwd bf16 b2 hq4 hk2 sq70 sk100 d64 mask_mod(kv_idx<=q_idx) "
                          "score_mod(score*0.5f)' gives other numbers there than in fp64: "),
                std::string::npos)
          << text;
    }
  }
}

TEST(TextCheck, TheSmallProblemIsOfTheSameKernels) {
  const Problem p = parse_problem(kLine), small = small_problem_of_texts(p);
  EXPECT_EQ(small.dtype, p.dtype);
  EXPECT_EQ(small.d, p.d);
  EXPECT_EQ(small.mask_mod, p.mask_mod);
  EXPECT_NO_THROW(validate(small));
}

}  // namespace
}  // namespace dfa
