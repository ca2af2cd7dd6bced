#pragma once

#include "kernels/device.h"
#include "kernels/tensor_map.h"

// Copies of boxes of a tensor between global and shared memory by the copy engine (TMA). sm_90.
namespace dfa::ptx {

// Is this the one thread of a whole warp that acts for it, always the same? Unlike behind a
// comparison of its index, an instruction of the copy engine then needs no loop over threads.
DFA_DEVICE bool elect() {
  unsigned chosen;
  asm volatile("{.reg .pred chosen; elect.sync _|chosen, %1; selp.u32 %0, 1, 0, chosen;}"
               : "=r"(chosen)
               : "n"(0xffffffffu));
  return chosen != 0;
}

DFA_DEVICE void prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// The one coordinate of a fifth dimension (gpu::TiledTensor).
inline constexpr int kFifthCoordinate = 1 << 30;

// The box at (column, row, head, batch) into shared memory; its bytes count at the barrier. What
// lies outside of the tensor becomes zero. kFifth: the map has five dimensions; likewise below.
template <bool kFifth = false>
DFA_DEVICE void load_box(unsigned target, const TensorMap& map, unsigned barrier, int column,
                         int row, int head, int batch) {
  if constexpr (kFifth) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(target),
        "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(kFifthCoordinate)
        : "memory");
    return;
  }
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(target),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

// Bytes that follow each other, in multiples of 16 and aligned to them, likewise.
DFA_DEVICE void load_bytes(unsigned target, const void* source, unsigned bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(target),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

// A box from shared memory to the tensor; what lies behind its end is not written. A box that
// starts before it is an illegal instruction to an H200, though one may be loaded.
template <bool kFifth = false>
DFA_DEVICE void store_box(const TensorMap& map, unsigned source, int column, int row, int head,
                          int batch) {
  if constexpr (kFifth) {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}],"
        " [%1];" ::"l"(&map),
        "r"(source), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(kFifthCoordinate)
        : "memory");
    return;
  }
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::
          "l"(&map),
      "r"(source), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

// Ends a group of this thread's stores.
DFA_DEVICE void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until shared memory of this thread's stores may be written again.
DFA_DEVICE void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Until this thread's stores have been written: later ones cannot overtake them.
DFA_DEVICE void wait_stores_written() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace dfa::ptx
