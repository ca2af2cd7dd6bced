#pragma once

#include "kernels/args.h"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/schedule/seqlen_info.h"
#include "kernels/schedule/sequence_tiles.cuh"
#include "kernels/softmax/online_softmax.cuh"

// Behind the delta kernel: the gradient of the sinks, -sum exp(sink - lse) delta over the rows of a
// head. A thread block has a head, and adds in one order.
namespace dfa {

inline constexpr int kSinkThreads = 256;

template <DType kElement, bool kVarlen>
__global__ void __launch_bounds__(kSinkThreads)
    sink_gradient(const __grid_constant__ KernelArgs args) {
  constexpr float kLog2E = 1.4426950408889634f;
  extern __shared__ __align__(128) char smem[];
  float* const of_warps = reinterpret_cast<float*>(smem);
  ptx::griddepcontrol_wait();
  const int head = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const float sink_log2 = args.logits.sinks[head] * kLog2E;
  float sum = 0;
  for (int batch = 0; batch < args.b; ++batch) {
    SeqlenInfo<kVarlen> seq;
    if constexpr (kVarlen) {
      seq = SeqlenInfo<true>::of(SequenceTiles<false>::sequence(args, batch));
    } else {
      seq = {batch};
    }
    const long long at = seq.padded_offset(args, head);
    for (int row = thread; row < seq.sq(args); row += kSinkThreads) {
      const float lse = args.lse_log2[at + row];
      const float lse_log2 = kStepwise<kElement> ? lse * kLog2E : lse;
      sum -= ptx::exp2(sink_log2 - lse_log2) * args.delta[at + row];
    }
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(ptx::kWholeWarp, sum, step);
  if (thread % 32 == 0) of_warps[thread / 32] = sum;
  __syncthreads();
  if (thread != 0) return;
  float all = 0;
  for (int warp = 0; warp < kSinkThreads / 32; ++warp) all += of_warps[warp];
  args.logits.d_sinks[head] = all;
}

}  // namespace dfa
