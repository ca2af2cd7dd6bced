#pragma once

#include "kernels/device.h"

namespace dfa {

struct PhiloxWords {
  unsigned word[4];
};

// Philox-4x32-10 of Salmon and others (2011): a counter and a key of two words become four words
// that are as good as random.
DFA_HOST_DEVICE PhiloxWords philox(PhiloxWords counter, unsigned key0, unsigned key1) {
  unsigned(&x)[4] = counter.word;
#ifdef __CUDACC__
#pragma unroll
#endif
  for (int round = 0; round < 10; ++round) {
    const unsigned long long first = 0xD2511F53ull * x[0], third = 0xCD9E8D57ull * x[2];
    x[0] = static_cast<unsigned>(third >> 32) ^ x[1] ^ key0;
    x[1] = static_cast<unsigned>(third);
    x[2] = static_cast<unsigned>(first >> 32) ^ x[3] ^ key1;
    x[3] = static_cast<unsigned>(first);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

}  // namespace dfa
