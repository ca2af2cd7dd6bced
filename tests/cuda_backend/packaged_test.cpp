// A default problem where there is no compiler, by kernels of a package.
#include <set>

#include "cuda/cache.h"
#include "cuda_backend/backend_test_case.h"
#include "dfa/error.h"

namespace dfa {
namespace {

using namespace testing::on_fake_cuda;

// A problem that nothing else here has kernels for.
Problem of_dims(int d) {
  Problem p = kProblem;
  p.pass = Pass::forward;
  p.d = p.dv = d;
  return p;
}

class PackagedKernelsTest : public CudaBackendTest {
 protected:
  void run(const Problem& p) {
    const Plan plan = dfa::plan(p, {.backend = "cuda"});
    ForwardArgs args = forward_args();
    for (const void** pointer : {&args.q, &args.k, &args.v}) *pointer = memory(70 * 256 * 2 * 2);
    args.o = memory(70 * 256 * 2 * 2);
    args.workspace = memory(plan.workspace_bytes + 1);
    forward(plan, args);
  }
  std::vector<KernelLaunch> launches(const Problem& p) {
    return forward_launches(p, select_forward(p, kLimits));
  }
};

TEST_F(PackagedKernelsTest, ADefaultProblemPlansLoadsAndRuns) {
  const Problem p = of_dims(128);
  testing::fake_kernels().add_to_package(launches(p), "nvrtc 13.0");
  run(p);
  ASSERT_EQ(fake().launches.size(), 1u);
  EXPECT_EQ(fake().launches[0].kernel, "_Z" + launches(p)[0].entry);
}

TEST_F(PackagedKernelsTest, OneOfALaterCudaThanTheDriversIsNotLoaded) {
  const Problem p = of_dims(96);
  testing::fake_kernels().add_to_package(launches(p), "nvrtc 14.1");
  EXPECT_THROW(run(p), Unsupported);
  testing::fake_kernels().add_to_package(launches(p), "nvrtc 12.8");
  run(p);
  EXPECT_EQ(fake().launches.size(), 1u);
}

// What `dfa cache warm` does.
class WarmTest : public CudaBackendTest {
 protected:
  static std::vector<Problem> problems(std::initializer_list<const char*> lines) {
    std::vector<Problem> all;
    for (const char* line : lines) all.push_back(parse_problem(line));
    return all;
  }
};

TEST_F(WarmTest, AKernelIsWantedOnceAndWhatCannotRunIsRefused) {
  const auto lines = {"fwd bf16 b1 h2 s100 d64", "fwd bf16 b3 h2 s90 d64", "fwd e4m3 h1 s8 d64"};
  const auto wanted = cuda::wanted_kernels(problems(lines), {.arch = "sm_80"});
  ASSERT_EQ(wanted.kernels.size(), 1u);
  EXPECT_EQ(wanted.kernels[0].name, "forward");
  EXPECT_EQ(wanted.kernels[0].arch, "sm_80");
  ASSERT_EQ(wanted.refused.size(), 1u);
  EXPECT_EQ(wanted.refused[0].first, to_line(parse_problem("fwd e4m3 h1 s8 d64")));
}

TEST_F(WarmTest, WithoutAnArchitectureTheDeviceAndItsMultiprocessorsAreAsked) {
  const auto few = problems({"fwd bf16 b2 hq32 hk8 sq1 sk8192 d128"});
  const auto kernels = [&](const cuda::WarmCard& card) {
    std::string text;
    for (const auto& kernel : cuda::wanted_kernels(few, card).kernels) {
      text += kernel.arch + " " + kernel.name_expression + "\n";
    }
    return text;
  };
  EXPECT_EQ(kernels({}), kernels({.arch = "sm_90a", .sm_count = kLimits.sm_count}));
  fake().part_sms = 16;
  EXPECT_EQ(kernels({}), kernels({.arch = "sm_90a", .sm_count = 16}));
  EXPECT_NE(kernels({}), kernels({.arch = "sm_90a"}));
}

TEST_F(WarmTest, ThreadsTellOfEachKernelOnceAndOfThoseThatCannotBeHad) {
  auto wanted = cuda::wanted_kernels(std::vector{kProblem}, {.arch = "sm_90a"}).kernels;
  ASSERT_GE(wanted.size(), 2u);
  const std::size_t there = wanted.size();
  for (int i = 0; i < 20; ++i) {
    wanted.push_back(wanted[0]);
    wanted.back().name_expression += " of no package " + std::to_string(i);
  }
  std::set<std::string> told;
  std::size_t failed = 0;
  cuda::warm_kernels(wanted, 4, [&](const cuda::WarmKernel& kernel) {
    told.insert(kernel.wanted.name_expression);
    failed += kernel.error != nullptr ? 1 : 0;
    EXPECT_EQ(kernel.error == nullptr, kernel.kept);
  });
  EXPECT_EQ(told.size(), wanted.size());
  EXPECT_EQ(failed, wanted.size() - there);
}

TEST_F(WarmTest, WhatTheTellerThrowsEndsIt) {
  const auto wanted = cuda::wanted_kernels(std::vector{kProblem}, {.arch = "sm_90a"}).kernels;
  int told = 0;
  const auto teller = [&](const cuda::WarmKernel&) {
    ++told;
    throw IoError("enough");
  };
  EXPECT_THROW(cuda::warm_kernels(wanted, 3, teller), IoError);
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace dfa
