#pragma once

#include "kernels/args.h"

// What the kernels of standard attention are passed.
namespace dfa {

// Matrices of scores, one row of `row_stride` fp32 for every query of every head, in the order
// [b, hq, sq]. A result takes the place of what it came from: the same row in the element type,
// from the row's beginning on.
struct ScoreArgs {
  float* scores;     // S, which becomes P
  float* gradients;  // dP, which becomes dS
  float* lse;        // null where nobody wants it
  long long rows;
  int row_stride;  // a multiple of 8
  int sq;
  int sk;
  int left;  // window sides as in Mask, cut to 2^29
  int right;
};

// A tensor [b, heads, s, d] from one memory layout into another.
struct CopyArgs {
  const void* from;
  void* to;
  KernelStrides from_strides;
  KernelStrides to_strides;
  long long rows;  // b * heads * s
  int heads;
  int s;
  int d;
};

// Shapes that the host chooses and the kernels are written for. The fewest lanes that hold a row
// are the fastest.
inline constexpr int kScoreThreads = 128;  // of a block of rows of one warp; others have one row
inline constexpr int kScoresHeld = 16;     // scores of its row that a thread keeps in registers
inline constexpr int kRowLanes[] = {32, 64, 128, 256, 512};  // threads that share a row
inline constexpr int kMostRowLanes = 512;  // these read again what they cannot hold
inline constexpr int kCopyThreads = 256;   // a warp a row

}  // namespace dfa
