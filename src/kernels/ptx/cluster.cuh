#pragma once

#include "kernels/device.h"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/tensor_map.h"

// Pairs of thread blocks, neighbours in a cluster: each other's shared memory, copies that go to
// both. sm_90.
namespace dfa::ptx {

// Of the cluster.
DFA_DEVICE unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The same place of shared memory in the first or the second block of this one's pair.
DFA_DEVICE unsigned of_pair(unsigned address, unsigned half) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(there)
      : "r"(address), "r"((cluster_rank() & ~1u) + half));
  return there;
}

// At a place of of_pair(). Nothing that was written before has to be seen by those who wait: a
// release at this scope empties the caches.
DFA_DEVICE void arrive_there(unsigned barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
               : "memory");
}
DFA_DEVICE void or_there(unsigned address, unsigned bits) {
  asm volatile("red.relaxed.cluster.shared::cluster.or.b32 [%0], %1;" ::"r"(address), "r"(bits)
               : "memory");
}
DFA_DEVICE void store_there(unsigned address, unsigned value) {
  asm volatile("st.relaxed.cluster.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(value)
               : "memory");
}
DFA_DEVICE void fence_cluster() { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }

// As wait(), and what the other block has fenced before it arrived is seen.
DFA_DEVICE void wait_for_pair(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred ended;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 ended, [%0], %1;\n"
      "@!ended bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// All threads of all blocks of the cluster that have not ended.
DFA_DEVICE void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// As load_box(), into the same place of both blocks; each has the bytes count at its own barrier.
template <bool kFifth = false>
DFA_DEVICE void load_box_of_pair(unsigned target, const TensorMap& map, unsigned barrier,
                                 int column, int row, int head, int batch) {
  const auto both = static_cast<unsigned short>(3u << (cluster_rank() & ~1u));
  if constexpr (kFifth) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(target),
        "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(1 << 30),
        "h"(both)
        : "memory");
    return;
  }
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(target),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "h"(both)
      : "memory");
}

// Bytes of this block's shared memory to a place of of_pair(), whose barrier there counts them. In
// multiples of 16 and aligned to them.
DFA_DEVICE void send_bytes(unsigned there, unsigned source, unsigned bytes,
                           unsigned barrier_there) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(there),
      "r"(source), "r"(bytes), "r"(barrier_there)
      : "memory");
}

}  // namespace dfa::ptx
