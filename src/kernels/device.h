#pragma once

// How a function is marked for the device. Headers marked with these are read by g++ too, which
// tests their arithmetic.
#ifdef __CUDACC__
#define DFA_DEVICE __device__ __forceinline__
#define DFA_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define DFA_HOST_DEVICE inline
#endif
