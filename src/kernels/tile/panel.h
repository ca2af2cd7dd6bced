#pragma once

#include "dfa/dtype.h"
#include "kernels/device.h"

// Tiles as the copy engine and the tensor cores of sm_90 share them: panels of 64 columns of 16-bit
// elements, or 128 of 8 bits, row after row of 128 bytes, the eight 16-byte chunks of a row
// permuted by the row (the 128-byte swizzle, as Swizzle<64> has it). Panels start at multiples of
// 1024 bytes.
namespace dfa {

inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = 128;

constexpr int panels(int columns) { return (columns + kPanelColumns - 1) / kPanelColumns; }
constexpr int panel_columns(DType element) { return kPanelRowBytes / bytes_of(element); }
constexpr int panels(DType element, int columns) {
  return (columns + panel_columns(element) - 1) / panel_columns(element);
}
constexpr int panel_bytes(int rows) { return rows * kPanelRowBytes; }
constexpr int tile_bytes(int rows, int columns) { return panels(columns) * panel_bytes(rows); }

// How wgmma is told where an operand lies; addresses and distances count 16 bytes.
struct Descriptor {
  unsigned low, high;

  DFA_HOST_DEVICE Descriptor moved(int bytes) const {
    return {low + static_cast<unsigned>(bytes >> 4), high};
  }
  DFA_HOST_DEVICE unsigned long long bits() const {
    return static_cast<unsigned long long>(high) << 32 | low;
  }
};

DFA_HOST_DEVICE Descriptor descriptor(unsigned address, int next_panel) {
  constexpr unsigned kEightRows = 1024 >> 4;
  constexpr unsigned kSwizzle128 = 1u << 30;
  return {(address & 0x3ffff) >> 4 | static_cast<unsigned>(next_panel >> 4) << 16,
          kEightRows | kSwizzle128};
}

// k runs along the columns, in steps of 16, or 32 of 8 bits; only one panel, of which kColumns are
// used, is read at a time.
DFA_HOST_DEVICE Descriptor k_in_columns(unsigned tile) { return descriptor(tile, 16); }
// Likewise of rows of 64 bytes, which have a swizzle of their own.
DFA_HOST_DEVICE Descriptor k_in_narrow_columns(unsigned tile) {
  constexpr unsigned kEightRows = 512 >> 4;
  constexpr unsigned kSwizzle64 = 2u << 30;
  return {descriptor(tile, 16).low, kEightRows | kSwizzle64};
}
template <int kRows, int kColumns = kPanelColumns>
constexpr int column_step(int step) {
  constexpr int kSteps = kColumns / 16;
  return step / kSteps * panel_bytes(kRows) + step % kSteps * 32;
}

// k runs along the rows, columns side by side.
template <int kRows>
DFA_HOST_DEVICE Descriptor k_in_rows(unsigned tile) {
  return descriptor(tile, panel_bytes(kRows));
}
constexpr int row_step(int step) { return step * 16 * kPanelRowBytes; }

}  // namespace dfa
