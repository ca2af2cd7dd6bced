#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "cuda/backend.h"
#include "cuda/fake_kernels.h"
#include "dfa/attention.h"
#include "gpu/fake_cuda_test_case.h"
#include "plan/select.h"
#include "spec/limits.h"

// The CUDA backend on a driver without a GPU, with kernels for one problem.
namespace dfa::testing::on_fake_cuda {

inline const Problem kProblem = parse_problem("fwdbwd bf16 causal b1 hq2 hk1 s70 d64");
inline const Limits kLimits = gpu_limits(90);

class CudaBackendTest : public testing::FakeCudaTest {
 protected:
  CudaBackendTest() {
    testing::fake_kernels().add(forward_launches(kProblem, select_forward(kProblem, kLimits)));
    testing::fake_kernels().add(backward_launches(kProblem, select_backward(kProblem, kLimits)));
  }

  void TearDown() override {  // kernels stay loaded
    for (void* pointer : taken_) cuda_backend().device().release(pointer);
    EXPECT_EQ(fake().used_bytes, 0u);
    EXPECT_EQ(fake().context_depth, 0u);
  }

  void* memory(std::size_t bytes = 70 * 64 * 2 * 2) {
    taken_.push_back(cuda_backend().device().allocate(bytes));
    return taken_.back();
  }

  ForwardArgs forward_args() {
    return {.q = memory(),
            .k = memory(),
            .v = memory(),
            .o = memory(),
            .lse = static_cast<float*>(memory())};
  }

  BackwardArgs backward_args(std::size_t workspace_bytes) {
    return {.q = memory(),
            .k = memory(),
            .v = memory(),
            .o = memory(),
            .lse = static_cast<const float*>(memory()),
            .d_o = memory(),
            .dq = memory(),
            .dk = memory(),
            .dv = memory(),
            .workspace = memory(workspace_bytes)};
  }

  std::vector<void*> taken_;
};

inline Plan planned() { return plan(kProblem, {.backend = "cuda", .algorithm = Algorithm::flash}); }

inline Problem for_hopper() {
  Problem p = kProblem;
  p.pass = Pass::forward;
  p.hq = p.hk = 150;
  p.sq = 1;
  return p;
}

}  // namespace dfa::testing::on_fake_cuda
