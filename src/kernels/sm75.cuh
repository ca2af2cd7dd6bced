#pragma once

// The kernels of Target::cuda_sm75: the portable ones, in fp16 with products of 16 x 8 x 8 and in
// fp32 with multiply-adds, without asynchronous copies.
#define DFA_SM75

#include "kernels/backward/delta.cuh"
#include "kernels/backward/sink_gradient.cuh"
#include "kernels/backward/sm80_backward.cuh"
#include "kernels/forward/sm80_forward.cuh"
