#pragma once

#include "dfa/dtype.h"

// What the tiles of GPU kernels of both passes have in common. Nothing but include-free headers may
// be included here: NVRTC compiles this, too.
namespace dfa {

constexpr int round_up(int value, int step) { return (value + step - 1) / step * step; }

// A row of a bias's tile in shared memory, of 16 bits: rows are 16 bytes apart, so that lanes meet
// other banks.
constexpr int bias_row_bytes(int keys) { return 2 * keys + 16; }

// GPU kernels are built for a few head dims; loads fill the columns between with zeros.
inline constexpr int kGpuHeadDims[] = {16, 32, 64, 96, 128, 192, 256};
// Of cuda_sm80 alone: no thread has registers for all columns of a sum. Thread blocks sum a slice
// of them each, and multiply heads slice by slice.
inline constexpr int kSlicedHeadDims[] = {320, 384, 512, 576};
inline constexpr int kMostColumns = 256;  // of a slice, and of heads without slices

constexpr int gpu_head_dim(long long d) {
  for (const int dim : kGpuHeadDims) {
    if (d <= dim) return dim;
  }
  for (const int dim : kSlicedHeadDims) {
    if (d <= dim) return dim;
  }
  return 0;
}

constexpr int columns_of_slice(int dim, int most = kMostColumns) {
  return dim / ((dim + most - 1) / most);
}

// wgmma (sm_90a) multiplies 64 rows with the 128 threads of a warpgroup.
inline constexpr int kGroupRows = 64;
inline constexpr int kGroupThreads = 128;

// What those who copy tell on cuda_sm90 of a tile that they took from a list of blocks.
inline constexpr int kListedStepBytes = 16;

// A row of columns in panels of 128 bytes (kernels/tile/panel.h).
constexpr int panel_row_bytes(DType element, int columns) {
  return round_up(bytes_of(element) * columns, 128);
}

}  // namespace dfa
