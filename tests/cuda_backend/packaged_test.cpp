// A default problem where there is no compiler, by kernels of a package.
#include "cuda_backend/backend_test_case.h"

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

}  // namespace
}  // namespace dfa
