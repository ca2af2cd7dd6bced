#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "cuda/request.h"
#include "kernels_full/architectures.h"
#include "plan/select.h"
#include "plan/validate.h"
#include "spec/limits.h"

namespace dfa::cuda {

class CompileTest : public OnArchitectures {
 protected:
  void SetUp() override {
    DFA_NEEDS_NVRTC(kernels_);
    limits_ = gpu_limits(GetParam().number);
  }

  void compile(const std::vector<KernelLaunch>& launches, int spilled = 0) {
    for (const KernelLaunch& launch : launches) {
      compile_without_stack(kernels_, request_of(launch, GetParam().name), spilled);
    }
  }

  std::vector<KernelLaunch> defaults() const {
    std::vector<KernelLaunch> all;
    for (const DType type : {DType::bf16, DType::fp16, DType::tf32, DType::fp32}) {
      if (sm75() && (type == DType::bf16 || type == DType::tf32)) continue;
      for (const int d : head_dims()) add_defaults(all, type, d, d);
    }
    add_defaults(all, half(), 192, 128);
    if (kEveryKernel) add_defaults(all, half(), 64, 128);
    return all;
  }

  void add_defaults(std::vector<KernelLaunch>& all, DType type, int d, int dv) const {
    const Problem p{.dtype = type, .sq = 64, .sk = 64, .d = d, .dv = dv};
    const auto add = [&](const std::vector<KernelLaunch>& launches) {
      all.insert(all.end(), launches.begin(), launches.end());
    };
    add(forward_launches(p, select_forward(p, limits_)));
    if (sm75() && type == DType::fp32 && d > 192) return;  // k and v alone would fill it
    add(backward_launches(p, select_backward(p, limits_)));
  }

  // What a problem takes where nothing is asked for, which must be legal.
  void compile_defaults(const std::string& line) {
    SCOPED_TRACE(line);
    const Problem p = parse_problem(line);
    const ForwardConfig forward = select_forward(p, limits_);
    const Verdict legal = validate_config(forward, p, limits_);
    ASSERT_TRUE(legal) << legal.reason;
    compile(forward_launches(p, forward));
    if (p.pass == Pass::forward) return;
    const BackwardConfig backward = select_backward(p, limits_);
    const Verdict also = validate_config(backward, p, limits_);
    ASSERT_TRUE(also) << also.reason;
    compile(backward_launches(p, backward));
  }

  static std::vector<int> head_dims() {
    if (!kEveryKernel) return {64, 128, 256};
    return {std::begin(kGpuHeadDims), std::end(kGpuHeadDims)};
  }

  // The portable kernels of both passes with a variant that `has` tells by their configurations.
  template <typename Has>
  void compile_variants(std::initializer_list<const char*> variants, const Has& has) {
    if (elsewhere()) GTEST_SKIP() << "sm_80 shows it";
    for (const DType type : {half(), DType::fp32}) {
      for (const int d : {64, 128}) {
        if (!kEveryKernel && (type == DType::fp32) != (d == 64)) continue;
        for (const char* variant : variants) {
          const Problem p = parse_problem(std::string("fwdbwd ") + name_of(type) + variant + " d" +
                                          std::to_string(d));
          const ForwardConfig forward = select_forward(p, limits_);
          const BackwardConfig backward = select_backward(p, limits_);
          ASSERT_TRUE(has(forward) && has(backward));
          ASSERT_TRUE(validate_config(forward, p, limits_) &&
                      validate_config(backward, p, limits_));
          compile(forward_launches(p, forward));
          compile(backward_launches(p, backward));
        }
      }
    }
  }

  // The portable kernels, of whatever there is, are one source for all machines: the full tier
  // compiles variants of them for one.
  bool elsewhere() const { return !kEveryKernel && GetParam().number != 80; }
  bool sm75() const { return limits_.highest == Target::cuda_sm75; }
  DType half() const { return sm75() ? DType::fp16 : DType::bf16; }

  TestKernels kernels_;
  Limits limits_;
};

}  // namespace dfa::cuda
