#pragma once

#include "emulated/async.h"
#include "kernels/device.h"
#include "kernels/tensor_map.h"

namespace dfa::ptx {

inline unsigned cluster_rank() { return emulated::rank(); }
inline unsigned of_pair(unsigned address, unsigned half) {
  return address % emulated::kBlocksApart + half * emulated::kBlocksApart;
}

inline void arrive_there(unsigned barrier) { emulated::arrive(barrier, 0); }
inline void or_there(unsigned address, unsigned bits) {
  unsigned word;
  std::memcpy(&word, smem + address, sizeof(word));
  word |= bits;
  std::memcpy(smem + address, &word, sizeof(word));
}
inline void store_there(unsigned address, unsigned value) {
  std::memcpy(smem + address, &value, sizeof(value));
}
inline void fence_cluster() {}
inline void wait_for_pair(unsigned barrier, unsigned parity) {
  emulated::wait_phase(barrier, parity);
}
inline void sync_cluster() {
  if (emulated::deaf.clusters) return;
  emulated::wait(emulated::cluster_barrier, emulated::cluster_size * blockDim.x);
}

template <bool kFifth = false>
void load_box_of_pair(unsigned target, const TensorMap& map, unsigned barrier, int column, int row,
                      int head, int batch) {
  for (unsigned half = 0; half < 2; ++half) {
    emulated::load_box(of_pair(target, half), map, of_pair(barrier, half),
                       {column, row, head, batch, kFifth ? 1 << 30 : 0});
  }
}

inline void send_bytes(unsigned there, unsigned source, unsigned bytes, unsigned barrier_there) {
  emulated::send_bytes(there, source, bytes, barrier_there);
}

}  // namespace dfa::ptx
