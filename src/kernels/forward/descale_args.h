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
};

}  // namespace dfa
