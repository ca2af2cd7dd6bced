// Hopper's own backward with dropout, biases and logits: compiled without a spill.
#include "kernels_full/compile_test.h"
#include "spec/config_text.h"

namespace dfa::cuda {
namespace {

using HopperBackwardVariants = CompileTest;

// All that plans may take; in the full tier the first. The gradient of a bias has a portable
// kernel beside them.
TEST_P(HopperBackwardVariants, CompileWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (const char* rest :
       cases({"bf16 d64 causal b4 h16 s4096 dropout(0.1,3)",
              "bf16 d64 b4 h16 s4096 alibi bias(1,h) dropout(0.1,3)",
              "bf16 d128 causal b4 h16 s4096 softcap(3) alibi bias(1,h)",
              "fp16 d128 causal h16 lens(640,640) alibi bias(1,h) dropout(0.1,3)",
              "bf16 d256 b4 h16 s4096 dropout(0.1,3)"},
             {"bf16 d64 b4 h16 s512 dropout(0.1,3)",
              "fp16 d64 b4 hq16 hk4 s512 dropout(0.1,3) deterministic causal",
              "bf16 d64 b1 h2 s16384 dropout(0.1,3) causal",
              "bf16 d64 h16 lens(640,640) dropout(0.1,3)",
              "bf16 d64 h16 lens(640,640) dropout(0.1,3) deterministic",
              "bf16 d64 h16 s640 chunk(64) causal dropout(0.1,3)",
              "bf16 d64 b4 h16 s4096 softcap(3) alibi causal",
              "bf16 d96 b4 h16 s4096 bias(b,h) dropout(0.1,3) deterministic",
              "bf16 d128 h16 s640 chunk(64) causal alibi bias(1,h)",
              "bf16 d128 b2 h16 s640 bias(1,h)", "fp16 d192 b4 h16 s4096 dropout(0.1,3)",
              "bf16 d192 b4 hq16 hk4 s640 softcap(3) alibi dropout(0.1,3) "
              "deterministic causal",
              "bf16 d192 h16 lens(640,640) alibi dropout(0.1,3)",
              "bf16 d64 dv128 b4 h16 s4096 dropout(0.1,3)",
              "bf16 d256 b4 h16 s4096 softcap(3) alibi deterministic causal"})) {
    const Problem p = parse_problem(std::string("bwd ") + rest);
    std::vector<BackwardConfig> all = sm90_backward_candidates(p, limits_);
    ASSERT_FALSE(all.empty()) << to_line(p);
    if (!kEveryKernel) all.resize(1);
    for (const BackwardConfig& config : all) {
      SCOPED_TRACE(to_text(config));
      compile(backward_launches(p, config));
    }
  }
}

DFA_ON_ARCHITECTURES(HopperBackwardVariants);

}  // namespace
}  // namespace dfa::cuda
