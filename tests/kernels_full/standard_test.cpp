// Every kernel of standard attention, for every architecture it is for.
#include "cuda/request.h"
#include "cuda/standard_steps.h"
#include "kernels_full/architectures.h"

namespace dfa::cuda {
namespace {

using StandardKernels = OnArchitectures;

// Rows of one warp, of two and of sixteen; a layout that is copied.
TEST_P(StandardKernels, CompileWithoutSpills) {
  TestKernels kernels;
  DFA_NEEDS_NVRTC(kernels);
  int compiled = 0;
  for (const DType type : {DType::fp32, DType::tf32, DType::fp16, DType::bf16}) {
    for (const std::int64_t sk : {500, 1000, 9000}) {
      const Problem p{
          .dtype = type, .b = 2, .hq = 2, .hk = 2, .sq = 8, .sk = sk, .layout = Layout::bshd};
      if (!check_standard(p, GetParam().number)) continue;
      for (const StandardStep& step : standard_backward_pass(p).steps) {
        const auto* score = std::get_if<ScoreStep>(&step);
        const auto* copy = std::get_if<CopyStep>(&step);
        if (score == nullptr && (copy == nullptr || sk != 500)) continue;
        const KernelLaunch& launch = score != nullptr ? score->launch : copy->launch;
        const CompiledKernel kernel =
            compile_without_stack(kernels, request_of(launch, GetParam().name));
        EXPECT_LE(kernel.registers, 64) << launch.entry;  // 1024 threads a multiprocessor
        ++compiled;
      }
    }
  }
  EXPECT_GE(compiled, 2 * 2 * 3);
}

TEST_P(StandardKernels, RowsThatAreRecomputedCompileWithoutSpills) {
  TestKernels kernels;
  DFA_NEEDS_NVRTC(kernels);
  for (const DType type : {DType::fp32, DType::tf32, DType::fp16, DType::bf16}) {
    if (type == DType::bf16 && GetParam().number < 80) continue;
    for (const std::int64_t d : {32, 64, 96, 256}) {
      const KernelLaunch launch = rows_launch({.dtype = type, .d = d, .dv = d}, 16);
      const CompiledKernel kernel =
          compile_without_stack(kernels, request_of(launch, GetParam().name));
      EXPECT_LE(kernel.registers, 128) << launch.entry;  // of 512 threads
    }
  }
}

DFA_ON_ARCHITECTURES(StandardKernels);

}  // namespace
}  // namespace dfa::cuda
