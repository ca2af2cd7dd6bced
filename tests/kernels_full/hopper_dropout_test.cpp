// Hopper's own forward with dropout and biases: compiled without a spill.
#include "kernels_full/compile_test.h"
#include "spec/config_text.h"

namespace dfa::cuda {
namespace {

using HopperDropout = CompileTest;

// All that plans may take, of dense tensors and of packed sequences; in the full tier the first of
// half of them.
TEST_P(HopperDropout, ForwardsCompileWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (int row = 0; const char* dims :
                    {"fwd bf16 d64", "fwd bf16 d128", "fwd bf16 d256", "fwd fp16 d192 dv128"}) {
    for (int place = row++;
         const char* rest :
         {" causal b4 h16 s4096", " b1 h2 sq64 sk8192", " causal h16 lens(640,640)",
          " causal b4 h16 s4096 softcap(3) sink", " causal b4 h16 s4096 chunk(300)"}) {
      if (!taken(place++)) continue;
      const Problem p = parse_problem(std::string(dims) + rest + " dropout(0.1,3)");
      std::vector<ForwardConfig> all = sm90_candidates(p, limits_);
      // Packed and chunked ones of the widest heads are left to portable kernels.
      ASSERT_EQ(all.empty(), p.d == 256 && (p.packed() || p.mask.chunk > 0)) << to_line(p);
      if (all.empty()) continue;
      if (!kEveryKernel) all.resize(1);
      for (const ForwardConfig& config : all) compile(forward_launches(p, config));
    }
  }
}

// The same of biases, alone and beside other logits and dropout.
TEST_P(HopperDropout, ForwardsWithABiasCompileWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (int row = 0; const char* d : {"64", "96", "128", "192"}) {
    for (int place = row++;
         const char* rest :
         cases({"bf16 b4 h16 s4096", "bf16 causal h16 lens(640,640)",
                "fp16 causal b4 h16 s4096 softcap(3) alibi sink", "fp16 b1 h2 sq64 sk8192"},
               {"bf16 b4 h16 s4096 dropout(0.1,3)", "bf16 b1 h2 sq64 sk8192",
                "bf16 causal b4 h16 s4096 chunk(300)", "fp16 b1 h2 sq64 sk8192 dropout(0.1,3)"})) {
      if (!taken(place++)) continue;
      const Problem p = parse_problem(std::string("fwd d") + d + " bias(1,h) " + rest);
      std::vector<ForwardConfig> all = sm90_candidates(p, limits_);
      ASSERT_FALSE(all.empty()) << to_line(p);
      if (!kEveryKernel) all.resize(1);
      for (const ForwardConfig& config : all) {
        SCOPED_TRACE(to_text(config));
        compile(forward_launches(p, config));
      }
    }
  }
}

DFA_ON_ARCHITECTURES(HopperDropout);

}  // namespace
}  // namespace dfa::cuda
