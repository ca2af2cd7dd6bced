#pragma once

#include "kernels/device.h"

namespace dfa {

// What a tensor in e4m3 is multiplied by (Descale in dfa/attention.h); null: 1.
struct DescaleArgs {
  const float* values;
  long long batch, head;

  // `more`: of blocks of rows, where a block's factor lies behind the first of its head.
  DFA_HOST_DEVICE float of(int at_batch, int kv_head, long long more = 0) const {
    return values == nullptr ? 1.f : values[at_batch * batch + kv_head * head + more];
  }
};

}  // namespace dfa
