// Standard attention through the CUDA backend, on a driver and products without a GPU.
#include <gtest/gtest.h>

#include <cstring>

#include "cuda/backend.h"
#include "cuda/fake_kernels.h"
#include "cuda/standard_steps.h"
#include "dfa/attention.h"
#include "gpu/fake_cublaslt.h"
#include "gpu/fake_cuda_test_case.h"

namespace dfa {
namespace {

const Problem kProblem = parse_problem("fwdbwd fp32 b2 hq4 hk2 sq7 sk9 d8");
const PlanOptions kOptions{.backend = "cuda", .algorithm = Algorithm::standard};

testing::FakeCublasLt& products() {
  static const std::string name = DFA_FAKE_CUBLASLT;
  static const SharedLibrary library = SharedLibrary::open_first(std::span(&name, 1));
  return *reinterpret_cast<testing::FakeCublasLt* (*)()>(library.symbol("fake_cublaslt"))();
}

class StandardTest : public testing::FakeCudaTest {
 protected:
  StandardTest() {
    ::setenv("DFA_CUBLASLT", DFA_FAKE_CUBLASLT, 1);
    fake().memory_bytes = std::size_t{64} << 20;
    products() = {};
    for (const auto& pass :
         {cuda::standard_forward_pass(kProblem), cuda::standard_backward_pass(kProblem)}) {
      for (const cuda::StandardStep& step : pass.steps) {
        if (const auto* score = std::get_if<cuda::ScoreStep>(&step))
          testing::fake_kernels().add({score->launch});
      }
    }
  }

  void TearDown() override {  // kernels stay loaded
    for (void* pointer : taken_) cuda_backend().device().release(pointer);
    EXPECT_EQ(fake().used_bytes, 0u);
    EXPECT_EQ(fake().context_depth, 0u);
  }

  // Device memory of `count` elements that are all `value`.
  float* tensor(std::size_t count, float value = 1) {
    taken_.push_back(cuda_backend().device().allocate(count * sizeof(float)));
    const std::vector<float> values(count, value);
    cuda_backend().device().copy_in(taken_.back(), values.data(), count * sizeof(float));
    return static_cast<float*>(taken_.back());
  }

  // Ones everywhere.
  BackwardArgs backward_args(const Plan& plan) {
    const std::size_t of_q = 2 * 4 * 7 * 8, of_k = 2 * 2 * 9 * 8;
    return {.q = tensor(of_q),
            .k = tensor(of_k),
            .v = tensor(of_k),
            .o = tensor(of_q),
            .lse = tensor(2 * 4 * 7),
            .d_o = tensor(of_q),
            .dq = tensor(of_q),
            .dk = tensor(of_k),
            .dv = tensor(of_k),
            .workspace = tensor(plan.workspace_bytes / sizeof(float))};
  }

  std::vector<void*> taken_;
};

TEST_F(StandardTest, ThePlanStatesItsMemoryAndWhatItRuns) {
  const Plan plan = dfa::plan(kProblem, kOptions);
  EXPECT_EQ(plan.algorithm, Algorithm::standard);
  EXPECT_EQ(plan.backend, "cuda");
  EXPECT_EQ(plan.workspace_bytes, cuda::standard_backward_pass(kProblem).workspace_bytes);
  for (const char* part : {"cublasLt 13.1.2", "S and dP", "7168 bytes", "fp32"}) {
    EXPECT_NE(plan.why.find(part), std::string::npos) << plan.why;
  }
  EXPECT_THROW(
      dfa::plan(kProblem,
                {.backend = "cuda", .algorithm = Algorithm::standard, .config = "block_q=64"}),
      InvalidArgument);
}

TEST_F(StandardTest, TheBackendNamesItsProducts) {
  EXPECT_NE(cuda_backend().description().find("standard attention: cublasLt 13.1.2"),
            std::string::npos)
      << cuda_backend().description();
}

// q and k of ones: S is d scale, from the products; P would be the softmax, which does not run
// here, so o is S v.
TEST_F(StandardTest, AForwardIsTwoProductsAndASoftmaxOnTheCallersStream) {
  const Plan plan = dfa::plan(kProblem, kOptions);
  const gpu::Stream stream(gpu::Device::get(0));
  float* const o = tensor(2 * 4 * 7 * 8, -1);
  const ForwardArgs args{.q = tensor(2 * 4 * 7 * 8),
                         .k = tensor(2 * 2 * 9 * 8, 2),
                         .v = tensor(2 * 2 * 9 * 8, 3),
                         .o = o,
                         .lse = tensor(2 * 4 * 7),
                         .workspace = tensor(plan.workspace_bytes / sizeof(float))};
  for (int run = 0; run < 2; ++run) {
    forward(plan, args, {.stream = stream.handle()});
    EXPECT_EQ(products().products, 2 * (run + 1));
    EXPECT_EQ(products().stream, stream.handle());
    ASSERT_EQ(fake().launches.size(), static_cast<std::size_t>(run + 1));
    EXPECT_EQ(fake().launches[0].config.hStream, stream.handle());
    void* scores = nullptr;
    std::memcpy(&scores, fake().launches[0].argument.data(), sizeof scores);
    EXPECT_EQ(scores, args.workspace);
  }
  const auto s = static_cast<float>(16 * kProblem.softmax_scale());
  EXPECT_FLOAT_EQ(static_cast<float*>(args.workspace)[0], s);
  for (const int at : {0, 100, 2 * 4 * 7 * 8 - 1}) EXPECT_FLOAT_EQ(o[at], 9 * 3 * s) << at;
}

TEST_F(StandardTest, ABackwardIsFiveProductsAndTwoKernels) {
  const Plan plan = dfa::plan(kProblem, kOptions);
  const BackwardArgs args = backward_args(plan);
  backward(plan, args);
  EXPECT_EQ(products().products, 5);
  ASSERT_EQ(fake().launches.size(), 2u);
  EXPECT_NE(fake().launches[0].kernel.find("softmax"), std::string::npos);
  EXPECT_NE(fake().launches[1].kernel.find("gradient"), std::string::npos);
  // S stands where P would be: dv sums it over the group's two heads and their seven queries.
  const auto s = static_cast<float>(8 * kProblem.softmax_scale());
  EXPECT_FLOAT_EQ(static_cast<const float*>(args.dv)[0], 2 * 7 * s);
}

TEST_F(StandardTest, WithStoredProbabilitiesABackwardIsFourProductsAndOneKernel) {
  const Plan plan =
      dfa::plan(kProblem, {.backend = "cuda", .config = "StandardConfig{.probabilities=stored}"});
  EXPECT_EQ(plan.algorithm, Algorithm::standard);
  EXPECT_EQ(plan.probabilities_bytes, std::size_t{4} * 2 * 4 * 7 * 16);
  EXPECT_NE(plan.why.find("3584 of these bytes, from the forward to the backward"),
            std::string::npos)
      << plan.why;
  BackwardArgs args = backward_args(plan);
  args.probabilities = tensor(plan.probabilities_bytes / sizeof(float), 5);
  backward(plan, args);
  EXPECT_EQ(products().products, 4);
  ASSERT_EQ(fake().launches.size(), 1u);
  EXPECT_NE(fake().launches[0].kernel.find("gradient"), std::string::npos);
  // dv sums the P that was given over the group's two heads and their seven queries.
  EXPECT_FLOAT_EQ(static_cast<const float*>(args.dv)[0], 2 * 7 * 5);
  BackwardArgs without = args;
  without.probabilities = nullptr;
  EXPECT_THROW(backward(plan, without), InvalidArgument);
  std::vector<float> host(plan.probabilities_bytes / sizeof(float) + 16);
  without.probabilities = host.data();
  EXPECT_THROW(backward(plan, without), InvalidArgument);
}

TEST_F(StandardTest, WhatDoesNotFitIsOutOfMemoryAndTheProcessGoesOn) {
  const Problem large = parse_problem("fwd fp32 b2 hq4 hk2 sq4096 sk4096 d8");
  const Plan plan = dfa::plan(large, kOptions);
  float* const any = tensor(2 * 4 * 4096 * 8);
  EXPECT_THROW(forward(plan, {.q = any, .k = any, .v = any, .o = any}), OutOfMemory);
  EXPECT_EQ(products().products, 0);
  float* const small = tensor(2 * 4 * 7 * 8);
  forward(dfa::plan(kProblem, kOptions), {.q = small, .k = small, .v = small, .o = small});
  EXPECT_EQ(products().products, 2);
}

TEST_F(StandardTest, AProductWithoutAKernelIsUnsupportedAndNamed) {
  products().has_kernels = false;
  Plan plan = dfa::plan(kProblem, kOptions);
  plan.ready = {};  // products that were found before stay found
  float* const any = tensor(2 * 4 * 7 * 8);
  const ForwardArgs args{.q = any, .k = any, .v = any, .o = any};
  try {
    forward(plan, args);
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("no kernel for fp32 4x [14x8] [9x8]^T"),
              std::string::npos)
        << error.what();
  }
  products().has_kernels = true;
  forward(plan, args);
}

}  // namespace
}  // namespace dfa
