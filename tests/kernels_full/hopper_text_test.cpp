// Hopper's own kernels with masks and logits that are texts, as plans take them where they are
// named: compiled with spills that are not worth a warning, but of the widest forwards and of sums
// in turn at d 128.
#include "kernels_full/compile_test.h"

namespace dfa::cuda {
namespace {

using HopperText = CompileTest;

constexpr int kFew = 64;  // bytes of stack

constexpr const char* kMask = "mask_mod(kv_idx <= q_idx + sk - sq || kv_idx < sq / 4 && !(h == 1))";
// About as many instructions as there may be, and few.
constexpr const char* kLong =
    "score_mod(30.0f * tanh(score / 30.0f) + pow(1 + abs(score), 0.3f) + 0.1f * h + b)";
constexpr const char* kBranches =
    "score_mod(5.0f * tanh(score / 5.0f) + 0.1f * h + (kv_idx < 4 ? min(score, 0.5f) : "
    "max(-score, exp(-abs(score)))))";

TEST_P(HopperText, ForwardsSpillAFewRegistersOfWideHeadsAtMost) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  const auto compile_named = [&](const char* sizes, const char* text) {
    const Problem p = parse_problem(std::string("fwd ") + sizes + " " + text);
    SCOPED_TRACE(to_line(p));
    const ForwardConfig config = asked_forward("target=cuda_sm90", p, limits_);
    ASSERT_EQ(config.target, Target::cuda_sm90);
    const int most = p.softcap > 0 ? 4 * kFew : 2 * kFew;
    compile(forward_launches(p, config), p.d > 192 ? most : 0);
  };
  for (const char* sizes :
       cases({"bf16 causal b4 h16 s4096 d128"},
             {"bf16 b4 h16 s4096 d64", "fp16 causal b4 h16 s4096 d64", "fp16 b4 h16 s4096 d128",
              "bf16 causal b4 h16 s4096 d192", "bf16 causal b4 h16 s4096 d256",
              "fp16 b4 h16 s4096 d256", "bf16 causal hq8 hk2 lens(700,1300) d128",
              "bf16 causal hq8 hk2 lens(700,1300) d256", "bf16 causal b1 hq48 hk1 s64 d128",
              "bf16 causal b1 h2 sq64 sk16384 d128", "bf16 causal b4 h16 s4096 d256 softcap(3)",
              "bf16 b4 h16 s4096 d192 bias(b,h)", "bf16 causal b4 h16 s4096 d128 chunk(512)",
              "fp16 causal b4 h16 s4096 d128 dropout(0.1,3)",
              "bf16 causal b4 h16 s4096 d128 blocks(random,0.2,1,partial)",
              "fp16 b4 h16 s4096 d64 blocks(random,0.2,1,64x64,partial)",
              "bf16 causal b4 h16 s4096 d256 blocks(random,0.2,1,partial)"})) {
    for (const char* text : cases({kBranches}, {kMask, kLong})) compile_named(sizes, text);
  }
  compile_named("bf16 causal b4 h16 s4096 d64 softcap(3) alibi sink", kMask);
}

// Pairs have no registers for all that some texts need (0036).
TEST_P(HopperText, BackwardsSpillAFewRegistersAtMost) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (const char* sizes :
       cases({"bf16 causal b4 h16 s4096 d128"},
             {"fp16 b4 h16 s4096 d64", "bf16 causal b4 h32 s2048 d64",
              "fp16 b4 h16 s4096 d64 window(256,0)", "bf16 b4 h16 s4096 d96 deterministic",
              "fp16 causal b4 h16 s4096 d128 deterministic", "bf16 causal b4 h16 s4096 d192",
              "fp16 causal b4 h16 s4096 d192 deterministic", "fp16 causal b4 h16 s4096 d256",
              "bf16 b4 h16 s512 d256", "bf16 b4 h16 s4096 d256 deterministic",
              "bf16 causal hq8 hk2 lens(700,1300) d64", "bf16 causal hq8 hk2 lens(700,1300) d128",
              "bf16 causal hq8 hk2 lens(700,1300) d256", "bf16 causal b4 h16 s4096 d192 chunk(512)",
              "bf16 causal b4 h16 s4096 d64 blocks(random,0.2,1,partial)",
              "fp16 b4 h16 s4096 d128 blocks(random,0.2,1,partial)"})) {
    for (const char* text : cases({kBranches}, {kMask, kLong})) {
      const Problem p = parse_problem(std::string("bwd ") + sizes + " " + text);
      SCOPED_TRACE(to_line(p));
      const BackwardConfig config = asked_backward("target=cuda_sm90", p, limits_);
      ASSERT_EQ(config.target, Target::cuda_sm90);
      compile(backward_launches(p, config), p.deterministic && p.d == 128 ? 2 * kFew : kFew);
    }
  }
}

DFA_ON_ARCHITECTURES(HopperText);

}  // namespace
}  // namespace dfa::cuda
