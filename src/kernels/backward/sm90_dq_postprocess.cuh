#pragma once

#include "kernels/backward/sm90_dq_rounding.cuh"
#include "kernels/backward/sm90_dq_zeros.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/schedule/key_work_tile.cuh"

namespace dfa {

// The warp of a block that, with nothing else to do, zeroes sums of dq of a later head and rounds
// those of an earlier one, or of wide tiles waits until they are complete and says so: so they need
// not go to memory and back. Where it does both it zeroes first, as others wait for that; what it
// waits for itself is of lower work tiles. Keys: Sm90Keys.
template <BackwardConfig kConfig, typename Keys>
struct Sm90DqPostprocess {
  using Zeros = Sm90DqZeros<kConfig>;
  using Shared = typename Keys::Shared;

  static DFA_DEVICE void run(const KernelArgs& args, const Shared& shared) {
    if constexpr (kConfig.clears_packed()) {
      Zeros::zero_packed_tiles(args, Keys::told_work_tile(shared));
    } else if constexpr (kConfig.dq == DqAccumulation::atomic_fused) {
      unsigned chunks = 0;
      Keys::template for_work_tiles<true>(
          args, shared, [&](const KeyWorkTile<>& of_cluster, unsigned work_tiles_before) {
            Zeros::zero_tiles(args, of_cluster);
            const int work = work_tile_index<kConfig.cluster_keys()>(args, of_cluster);
            if constexpr (kConfig.sm90_is_wide()) {  // those who compute round
              Keys::Rounding::await_share(args, work);
              if (ptx::thread_index() % 32 == 0) {
                // All have seen what was told of the work before.
                ptx::wait(shared.k_empty(), work_tiles_before % 2 ^ 1);
                ptx::arrive(shared.complete());
              }
              __syncwarp();
            } else {
              Keys::rounding_warp(shared.base).round_share(args, work, chunks, of_cluster.part);
            }
          });
    } else if constexpr (kConfig.dq_fused()) {
      Keys::rounding_warp(shared.base).round_shares(args);
    }
  }

  // By a thread: of packed sequences who adds waits for v, and with it for zeros to add to.
  static DFA_DEVICE void await_zeros(const KernelArgs& args, const Shared& shared) {
    if constexpr (kConfig.clears_packed()) {
      Zeros::wait_for_packed_tiles(args, Keys::told_work_tile(shared));
      ptx::arrive(shared.v_full());
    }
  }
};

}  // namespace dfa
