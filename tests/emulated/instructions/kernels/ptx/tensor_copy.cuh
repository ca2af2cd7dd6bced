#pragma once

#include "emulated/async.h"
#include "kernels/device.h"
#include "kernels/tensor_map.h"

namespace dfa::ptx {

inline bool elect() { return threadIdx.x % 32 == 0; }

inline void prefetch(const TensorMap&) {}

template <bool kFifth = false>
void load_box(unsigned target, const TensorMap& map, unsigned barrier, int column, int row,
              int head, int batch) {
  emulated::load_box(target, map, barrier, {column, row, head, batch, kFifth ? 1 << 30 : 0});
}

inline void load_bytes(unsigned target, const void* source, unsigned bytes, unsigned barrier) {
  emulated::load_bytes(target, source, bytes, barrier);
}

template <bool kFifth = false>
void store_box(const TensorMap& map, unsigned source, int column, int row, int head, int batch) {
  emulated::store_box(map, source, {column, row, head, batch, kFifth ? 1 << 30 : 0});
}

inline void commit_stores() { emulated::commit_stores(); }
inline void wait_stores_read() { emulated::wait_stores(false); }
inline void wait_stores_written() { emulated::wait_stores(true); }

}  // namespace dfa::ptx
