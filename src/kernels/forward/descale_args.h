#pragma once

#include "kernels/device.h"

namespace dfa {

// What a tensor in e4m3 is multiplied by (Descale in dfa/attention.h); null: 1.
struct DescaleArgs {
  const float* values;
  long long batch, head;

  DFA_HOST_DEVICE float of(int at_batch, int kv_head) const {
    return values == nullptr ? 1.f : values[at_batch * batch + kv_head * head];
  }

  // Those of a head, and from them of one of its blocks of rows, which are so many elements apart:
  // of(0, 0) then. Strides of null are 0.
  DFA_HOST_DEVICE DescaleArgs of_head(int at_batch, int kv_head) const {
    return {values + at_batch * batch + kv_head * head, 0, 0};
  }
  DFA_HOST_DEVICE DescaleArgs of_block(int block, long long stride) const {
    return {values + block * stride, 0, 0};
  }
};

}  // namespace dfa
