// Hopper's forward in e4m3 through the driver.
#include <cstring>
#include <string>

#include "cuda/chosen_device.h"
#include "cuda/flash.h"
#include "cuda_backend/backend_test_case.h"
#include "plan/validate_gpu.h"

namespace dfa {
namespace {

using namespace testing::on_fake_cuda;

const char* const kLine = "fwd e4m3 b2 hq4 hk2 sq70 sk90 d64";

// v is transposed into the workspace first.
TEST_F(CudaBackendTest, E4m3TransposesVThenAttends) {
  const Problem p = parse_problem(kLine);
  ForwardConfig config = select_forward(p, kLimits);
  config.transpose_values = false;
  const std::vector<KernelLaunch> expected = forward_launches(p, config);
  testing::fake_kernels().add(expected);
  ForwardArgs args = forward_args();
  args.workspace = memory(forward_workspace_bytes(p, config));
  const auto launcher = cuda::flash_forward(p, config, cuda::chosen_device(), 132);
  launcher->queue(args, gpu::Stream::foreign(cuda::chosen_device(), nullptr), 0);
  ASSERT_EQ(fake().launches.size(), 2u);
  const void* const first[][2] = {{args.v, args.workspace}, {args.q, nullptr}};
  for (std::size_t i = 0; i < 2; ++i) {
    const testing::FakeLaunch& seen = fake().launches[i];
    EXPECT_EQ(seen.kernel, "_Z" + expected[i].entry);
    EXPECT_EQ(seen.config.gridDimX, expected[i].grid);
    const void* pointers[2] = {};  // a fake map begins with the address
    std::memcpy(pointers, seen.argument.data(), sizeof pointers);
    EXPECT_EQ(pointers[0], first[i][0]);
    if (first[i][1] != nullptr) {
      EXPECT_EQ(pointers[1], first[i][1]);
    }
  }
}

// In the kernel: that alone is launched, and before it the list of packed sequences.
TEST_F(CudaBackendTest, E4m3TransposesVWithinTheForward) {
  for (const char* line : {kLine, "fwd e4m3 hq4 hk2 lens(70,9) lens_k(90,9) d64"}) {
    const Problem p = parse_problem(line);
    ForwardConfig config = select_forward(p, kLimits);
    config.transpose_values = true;
    const std::vector<KernelLaunch> expected = forward_launches(p, config);
    testing::fake_kernels().add(expected);
    ForwardArgs args = forward_args();
    args.workspace = memory(forward_workspace_bytes(p, config) + 1);
    const auto launcher = cuda::flash_forward(p, config, cuda::chosen_device(), 132);
    const std::size_t before = fake().launches.size();
    launcher->queue(args, gpu::Stream::foreign(cuda::chosen_device(), nullptr), 0);
    ASSERT_EQ(fake().launches.size(), before + expected.size());
    ASSERT_EQ(expected.size(), p.packed() ? 2u : 1u);
    const testing::FakeLaunch& seen = fake().launches.back();
    EXPECT_EQ(seen.kernel, "_Z" + expected.back().entry);
    const void* q = nullptr;  // a fake map begins with the address
    std::memcpy(&q, seen.argument.data(), sizeof q);
    EXPECT_EQ(q, args.q) << line;
  }
}

TEST_F(CudaBackendTest, E4m3WithFactorsOfBlocksOfRowsIsThereNamedOrNot) {
  const Problem p = parse_problem(std::string(kLine) + " descale_rows(64)");
  const PlanOptions unnamed{.backend = "cuda"};
  PlanOptions named = unnamed;
  named.config = "target=cuda_sm90";
  EXPECT_EQ(cuda_backend().supports(p, unnamed).reason, "");
  EXPECT_EQ(cuda_backend().supports(p, named).reason, "");
  const Plan plan = dfa::plan(p, named);
  EXPECT_NE(plan.config.find(".descale_blocks=true"), std::string::npos) << plan.config;
  named.config = "target=cuda_sm90,block_k=192";
  EXPECT_THROW(dfa::plan(p, named), Error);
  const Problem wide = parse_problem("fwd e4m3 b1 h1 s64 d320 descale_rows(64)");
  EXPECT_NE(cuda_backend().supports(wide, named).reason.find("256"), std::string::npos);
}

}  // namespace
}  // namespace dfa
