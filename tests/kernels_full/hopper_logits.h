#pragma once

#include <algorithm>

#include "kernels_full/compile_test.h"
#include "plan/validate.h"
#include "plan/validate_gpu.h"

namespace dfa::cuda {

// Hopper's own kernels with logits that are not plain. Which tiles there are is asked for plain
// logits, of which there are more.
class HopperLogitsTest : public CompileTest {
 protected:
  void SetUp() override {
    CompileTest::SetUp();
    if (!IsSkipped() && limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  }

  // Tiles that this problem's plain forward takes first.
  std::vector<ForwardConfig> tiles(const std::string& line, std::size_t most) const {
    std::vector<ForwardConfig> found = sm90_candidates(parse_problem(line), limits_);
    if (found.size() > most) found.resize(most);
    return found;
  }

  static Problem problem(const ForwardConfig& c, const char* sizes, const char* logits) {
    return parse_problem(std::string("fwd ") + name_of(c.element) + sizes + " d" +
                         std::to_string(c.head_dim) + " " + logits);
  }

  // Where rules allow it, of dense tensors and of packed sequences.
  void compile_with(ForwardConfig config, const char* logits) {
    constexpr int kFewerColumns = 64;  // of q, as plans have it
    const Problem dense = problem(config, " causal b1 hq48 hk1 s64", logits);
    if (config.value_dim > 192 && (dense.softcap != 0 || dense.alibi)) {
      config.q_columns_in_regs = std::min(config.q_columns_in_regs, kFewerColumns);
    }
    set_logits(config, dense);
    const Verdict legal = validate_config(config, dense, limits_);
    if (!legal) return;
    compile(forward_launches(dense, config));
    ++compiled_;
    if (config.cluster > 1 || config.pack_gqa > 1) return;
    config.num_splits = 0;
    config.varlen = true;
    compile({forward_launches(problem(config, " h1 lens(64,64)", logits), config).back()});
  }

  // Of sinks kernels of gradients know nothing.
  void compile_backward(DType element, int dim, const char* logits, int cluster, DqAccumulation dq,
                        bool persistent) {
    BackwardConfig config{.target = Target::cuda_sm90,
                          .element = element,
                          .head_dim = dim,
                          .value_dim = dim,
                          .block_q = 64,
                          .block_k = 64,
                          .warps = 8,
                          .stages = 2,
                          .ctas = 1,
                          .dq = dq,
                          .cluster = cluster,
                          .persistent = persistent};
    const auto with_sizes = [&](const char* sizes) {
      return parse_problem(std::string("bwd ") + name_of(element) + sizes + " d" +
                           std::to_string(dim) + " " + logits);
    };
    const Problem dense = with_sizes(" causal b1 h8 s512");
    set_logits(config, dense);
    const Verdict legal = validate_config(config, dense, limits_);
    if (!legal) return;
    compile({backward_launches(dense, config)[1]});
    ++compiled_;
    if (persistent || (cluster > 1 && dim > 192)) return;
    config.varlen = true;
    compile({backward_launches(with_sizes(" causal h8 lens(64,64)"), config)[2]});
  }

  int compiled_ = 0;
};

inline constexpr const char* kLogits[] = {"softcap(3)", "sink", "alibi", "softcap(3) alibi sink"};

}  // namespace dfa::cuda
