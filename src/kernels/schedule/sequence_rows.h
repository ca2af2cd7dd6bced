#pragma once

#include "kernels/device.h"

// Where a packed sequence begins and how many rows it has. Whatever cu_seqlens and seqused say, it
// is cut to the `total` rows that there are.
namespace dfa {

DFA_HOST_DEVICE int cut_rows(int value, int most) {
  return value < 0 ? 0 : (value > most ? most : value);
}
DFA_HOST_DEVICE int sequence_begin(const int* cu_seqlens, int i, int total) {
  return cut_rows(cu_seqlens[i], total);
}
DFA_HOST_DEVICE int sequence_rows(const int* cu_seqlens, const int* used, int i, int total) {
  const int first = sequence_begin(cu_seqlens, i, total);
  const int all = used != nullptr ? used[i] : cu_seqlens[i + 1] - first;
  return cut_rows(all, total - first);
}

}  // namespace dfa
