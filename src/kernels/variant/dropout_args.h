#pragma once

#include "kernels/args.h"
#include "kernels/device.h"

namespace dfa {

// Of dropout: seed and offset, on the device, or the seed where `state` is null; of 2^16 numbers so
// many keep a probability; and the number of the first batch.
//
// Kernels have them in the places of PagedArgs, as no problem of pages has dropout: more of
// KernelArgs would move what Hopper's kernels have behind it, and a union costs the kernels of
// pages what the compiler knows of their pointers.
struct DropoutArgs {
  const unsigned long long* state;
  unsigned long long seed;
  unsigned kept;
  int first_batch;

  static DFA_HOST_DEVICE DropoutArgs of(const KernelArgs& args) {
    return {reinterpret_cast<const unsigned long long*>(args.paged.block_table),
            static_cast<unsigned long long>(args.paged.table_row),
            static_cast<unsigned>(args.paged.page), args.paged.pages};
  }
  DFA_HOST_DEVICE PagedArgs as_pages() const {
    return {reinterpret_cast<const int*>(state), static_cast<long long>(seed), nullptr,
            static_cast<int>(kept), first_batch};
  }
};

}  // namespace dfa
