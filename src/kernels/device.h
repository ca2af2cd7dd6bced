#pragma once

// How a function is marked for the device. Headers marked with these are read by g++ too, which
// tests their arithmetic.
#ifdef __CUDACC__
#define DFA_DEVICE __device__ __forceinline__
#define DFA_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define DFA_HOST_DEVICE inline
#endif

namespace dfa {

// Are kernels of Target::cuda_sm75 compiled (kernels/sm75.cuh), with instructions of sm_75 alone?
#ifdef DFA_SM75
inline constexpr bool kSm75 = true;
#else
inline constexpr bool kSm75 = false;
#endif

// Are there instructions that convert e4m3 (sm_89 and up)?
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
inline constexpr bool kConvertsE4m3 = false;
#else
inline constexpr bool kConvertsE4m3 = true;
#endif

}  // namespace dfa
