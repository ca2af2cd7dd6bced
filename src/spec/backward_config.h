#pragma once

#include "dfa/dtype.h"
#include "spec/gpu_tiles.h"
#include "spec/target.h"

namespace dfa {

// How the backward gets dq.
//   separate          a kernel of its own computes the scores again
//   serialized        blocks of the kernel of dk and dv add to fp32 sums in a fixed order, by a
//                     semaphore a tile; a second kernel rounds the sums
//   serialized_fused  the same, rounded in the same grid (cuda_sm90)
//   atomic            blocks add as they come, so that the last bits change from run to run; sums
//                     are cleared before, or those of packed sequences beside, and rounded by a
//                     second kernel (cuda_sm90)
//   atomic_fused      the same, cleared and rounded in the same grid (cuda_sm90)
enum class DqAccumulation : int { separate, serialized, serialized_fused, atomic, atomic_fused };

// Tile configuration of a FlashAttention backward kernel, which walks queries for a block of keys.
struct BackwardConfig {
  Target target = Target::cpu_portable;
  DType element = DType::fp32;
  int head_dim = 64;
  int value_dim = 64;
  int block_q = 64;
  int block_k = 64;
  // Of GPU targets only. Two kernels: one owns block_k keys, warp_rows() a warp, and walks
  // blocks of block_q queries for dk and dv; the other owns dq_block_q queries and walks blocks of
  // dq_block_k keys for dq, unless the first adds that up as well.
  int warps = 4;
  int sharing = 1;  // warps that own the same keys, each a part of the columns of dk and dv
  int stages = 2;   // walked tiles in shared memory, in both kernels
  int ctas = 2;
  DqAccumulation dq = DqAccumulation::separate;
  int dq_block_q = 64;  // not of cuda_sm90, likewise below
  int dq_block_k = 64;
  int dq_warps = 4;
  int dq_ctas = 2;
  // Of cuda_sm90 only, 16 bits: blocks of a cluster, which share copies of q and do and make each
  // other's share of dq.
  int cluster = 1;
  // Of cuda_sm90 only, 16 bits, cluster=2: pairs of blocks stay and take keys of one
  // head after the other, so that the next ones' queries come meanwhile.
  bool persistent = false;
  // Of cuda_sm90 only, 16 bits, cluster=2, d and dv up to 128: the mask hides keys. A warpgroup has
  // no products of tiles of queries that see none of its own keys, and the second block's keys lie
  // between those of the first one's two warpgroups.
  bool masked = false;
  // Of cuda_sm90 only, 16 bits, persistent=true, d and dv up to 128, without a left side of a mask:
  // work tiles that do not fill a last round of pairs, or under a mask the longest of few, are in
  // parts of their queries (0019).
  bool split_q = false;
  // Of cuda_sm90 only, 16 bits, cluster=2, dq serialized, d and dv up to 128, or d up to 192 and
  // dv up to d: pairs walk a tile of queries for all query heads of their key head, then the next;
  // else one head after the other (0019).
  bool gqa_inner_loop = false;
  // Of GPU targets: packed sequences, whose lengths the kernel reads (SeqlenInfo).
  bool varlen = false;
  bool softcap = false;  // as in ForwardConfig
  bool alibi = false;
  bool bias = false;
  bool ranges = false;
  bool dropout = false;
  bool blocks = false;
  bool text = false;

  constexpr bool dq_serialized() const {
    return dq == DqAccumulation::serialized || dq == DqAccumulation::serialized_fused;
  }
  constexpr bool dq_atomic() const {
    return dq == DqAccumulation::atomic || dq == DqAccumulation::atomic_fused;
  }
  // Are sums of dq rounded, and where they come as they come cleared, in the same grid?
  constexpr bool dq_fused() const {
    return dq == DqAccumulation::serialized_fused || dq == DqAccumulation::atomic_fused;
  }
  // Of cuda_sm90, packed sequences: are sums as they come cleared in the grid that adds them up?
  constexpr bool clears_packed() const {
    return target == Target::cuda_sm90 && bytes_of(element) == 2 && varlen &&
           dq == DqAccumulation::atomic;
  }
  // Of cuda_sm90: is the dq semaphore released by a second thread, beside the wait for the next?
  constexpr bool early_release() const {
    return bytes_of(element) == 2 && dq_serialized() &&
           (cluster > 1 || sm90_is_wide() || (dq_fused() && head_dim <= 64));
  }

  // Keys whose dq is added up at once, and rows of dq that have one semaphore.
  constexpr int cluster_keys() const { return cluster * block_k; }
  constexpr int dq_semaphore_rows() const {
    return target == Target::cuda_sm90 ? block_q : dq_block_q;
  }
  // Blocks of a wide pair, which each make half of the shares of dq, have semaphores of their own.
  constexpr int dq_semaphores_of_tile() const { return sm90_wide_pair() ? cluster : 1; }

  constexpr int threads() const {
    return 32 * warps + (target == Target::cuda_sm90 ? kGroupThreads : 0);  // four warps copy
  }
  constexpr int warp_rows() const { return block_k / (warps / sharing); }
  constexpr int dq_threads() const { return 32 * dq_warps; }
  constexpr int dq_warp_rows() const { return dq_block_q / dq_warps; }

  // The owned tiles of k and v, `stages` of q and do with their lse and delta, and what warps that
  // share keys tell each other. Of cuda_sm90, in columns of 64: likewise (in fp32 one tile of ds),
  // and barriers.
  constexpr int smem_bytes() const {
    if (target == Target::cuda_sm90 && bytes_of(element) == 4) {  // three planes of bf16
      const int wide_row = 6 * (round_up(head_dim, 64) + round_up(value_dim, 64));
      return block_k * wide_row + stages * block_q * (wide_row + 8) +
             6 * block_k * round_up(block_q, 64) + 8 * (4 + 2 * stages);
    }
    if (target == Target::cuda_sm90) {
      const int wide_row = 2 * (round_up(head_dim, 64) + round_up(value_dim, 64));
      const int do_row = 2 * round_up(value_dim, 64);
      return block_k * wide_row + stages * block_q * (wide_row - do_row + 8) +
             do_stages() * block_q * do_row + sm90_exchange_bytes() +
             8 * (sm90_barriers() + 2 * cluster * stages) + sm90_queue_bytes() +
             sm90_rounding_bytes();
    }
    const int row = bytes_of(element) * (head_dim + value_dim);
    if (sliced()) return block_k * row + stages * block_q * slice_bytes();
    return block_k * row + stages * block_q * (row + 8) + exchange_bytes();
  }

  // As in ForwardConfig. dk and dv then come from kernels of their own, and that of dv needs no v.
  constexpr bool sliced() const { return head_dim > kMostColumns || value_dim > kMostColumns; }
  constexpr BackwardConfig of_slice() const {
    BackwardConfig slice = *this;
    slice.head_dim = columns_of_slice(head_dim, most_columns());
    slice.value_dim = columns_of_slice(value_dim, most_columns());
    return slice;
  }
  // Four bytes an element leave registers for no more.
  constexpr int most_columns() const { return bytes_of(element) == 4 ? 160 : kMostColumns; }
  constexpr int sum_slices(bool of_values) const {  // of dv, or dk
    return of_values ? value_dim / of_slice().value_dim : head_dim / of_slice().head_dim;
  }
  constexpr int slice_bytes() const {  // of a row
    const BackwardConfig slice = of_slice();
    const int dim = slice.head_dim > slice.value_dim ? slice.head_dim : slice.value_dim;
    return bytes_of(element) * dim;
  }
  constexpr int sliced_dv_smem_bytes() const {
    const int values = of_slice().value_dim;
    return bytes_of(element) * block_k * (head_dim > values ? head_dim : values) +
           stages * block_q * slice_bytes();
  }

  // Of cuda_sm90 in slices, where dv, dk and dq come from kernels of their own: panels of 64
  // columns in a ring, and shared memory (sm90_sliced_backward.cuh). That of dv needs no v.
  static constexpr int sliced_stages(bool of_values) { return of_values ? 8 : 5; }
  constexpr int sm90_sliced_smem_bytes(bool of_values) const {
    constexpr int kPanel = 2 * kGroupRows * 64;
    const int owned = 2 * kGroupRows * (head_dim + (of_values ? 0 : value_dim));
    return owned + 2 * sliced_stages(of_values) * (kPanel + 16) + 2 * kPanel + 32 * kGroupRows + 16;
  }

  // Of cuda_sm90, 16 bits: do warpgroups own a gradient each, one dv, one dk, of the same 64 keys?
  // Then one tells the other p, in fp32, and has ds back; else there are two tiles of ds. Of pairs
  // one more, wide ones one more and two of what comes from the other block, and its k.
  constexpr bool sm90_is_wide() const { return block_k == kGroupRows; }
  constexpr bool sm90_wide_pair() const { return sm90_is_wide() && cluster > 1; }
  constexpr int sm90_exchange_bytes() const {
    const int tile = 2 * block_k * round_up(block_q, 64);  // of ds
    const int others_k = cluster > 1 ? 2 * block_k * others_columns() : 0;
    if (sm90_is_wide()) return (cluster > 1 ? 6 : 3) * tile + sm90_draw_bytes() + others_k;
    return (cluster > 1 ? 3 : 2) * tile + sm90_draw_bytes() + others_k;
  }

  // What warps tell each other of a dropout's draws: of wide kernels those of two tiles, else of
  // each warpgroup's halves of one.
  constexpr int sm90_draw_bytes() const {
    const int places = sm90_is_wide() ? 2 : block_q / kGroupRows * (warps / 4);
    return dropout ? places * 4 * kGroupThreads : 0;
  }

  // Of pairs up to 64 columns: a thread with nothing else to do sends ds, a warpgroup's at a time.
  constexpr bool sm90_sends_ds() const { return cluster > 1 && !sm90_is_wide() && head_dim <= 64; }

  // Of cuda_sm90: do registers last for columns of k and v as left operands, without a spill?
  constexpr bool holds_keys() const {
    const int widest = head_dim > value_dim ? head_dim : value_dim;
    if (sm90_is_wide()) {
      const bool beside = persistent || bias || dropout || (text && dq_serialized());
      return cluster == 2 && (widest <= 192 || !beside);
    }
    return !dropout && !text && widest <= (cluster == 2 ? 96 : 64);
  }
  // So many of each. Of wide pairs those who have dv hold k, those who have dk v.
  constexpr int sm90_held_k() const {
    return sm90_held(head_dim, value_dim, dq_serialized() ? 16 : 32);
  }
  constexpr int sm90_held_v() const {
    return sm90_held(value_dim, head_dim, dq_serialized() ? 64 : 48);
  }
  // sums: columns of the sums in the same registers; most_beside_256: where these are the most.
  constexpr int sm90_held(int columns, int sums, int most_beside_256) const {
    const int of_wide = bias || dropout ? (sums <= 128 ? 128 : 0) : 128;
    const int most = !sm90_is_wide() ? 64 : (sums <= 192 ? of_wide : most_beside_256);
    return holds_keys() ? (columns < most ? columns : most) : 0;
  }

  // Of wide pairs: does a block make dq of one half of the columns, of all tiles? An odd number of
  // shares is dealt out in turn instead. Then half of the other block's k is enough.
  constexpr bool sm90_halves_dq() const {
    return sm90_wide_pair() && round_up(head_dim, 64) % 128 == 0;
  }
  constexpr int others_columns() const {
    return round_up(head_dim, 64) / (sm90_halves_dq() ? 2 : 1);
  }
  // Of do there is room for one where v is as wide as it may be.
  constexpr int do_stages() const { return sm90_wide_pair() && value_dim > 192 ? 1 : stages; }

  // Of cuda_sm90: barriers beside those of the stages.
  constexpr int sm90_barriers() const {
    if (cluster > 1) return sm90_is_wide() ? 9 : (sm90_sends_ds() ? 8 + block_q / 32 : 8);
    return early_release() ? 5 : 4;
  }
  // Of a pair that stays: barriers of its keys, two slots for work tiles and two barriers for each.
  // Of packed sequences: the block's work. Of lists: what is told of each tile of q.
  constexpr int sm90_queue_bytes() const {
    if (blocks) return kListedStepBytes * stages;
    return persistent ? 8 * (3 + 8) : varlen ? 32 : 0;
  }

  // Of cuda_sm90: sums of dq on their way through the warp that rounds them, 16 columns of 64
  // queries a slot, with a barrier each, in wide kernels through registers; and tiles that a block
  // at the end rounds.
  constexpr int rounding_slots() const { return 4; }
  constexpr int rounding_chunk_bytes() const { return 4 * 16 * 64; }
  constexpr int sm90_rounding_bytes() const {
    return dq_fused() && !sm90_is_wide() ? rounding_slots() * (rounding_chunk_bytes() + 8) + 8 : 0;
  }
  constexpr int rounded_tiles() const { return 3; }

  // Of cuda_sm90: those that round dq, a warpgroup for 64 columns and two at least.
  constexpr int sm90_dq_threads() const {
    const int groups = (head_dim + 63) / 64;
    return kGroupThreads * (groups > 2 ? groups : 2);
  }

  // Probabilities and score gradients of one step, rounded.
  constexpr int exchange_bytes() const {
    const int operands = sharing > 1 ? 2 : (dq_serialized() ? 1 : 0);
    return operands * bytes_of(element) * block_k * block_q;
  }

  // The tile of dq of one step: rows of a warp, and warps side by side.
  constexpr int serialized_rows() const {
    return block_q >= 64 && head_dim % (16 * warps * 32 / block_q) == 0 ? 32 : 16;
  }
  constexpr int serialized_parts() const { return warps * serialized_rows() / block_q; }

  // The owned tiles of q and do, and `stages` of k and v.
  constexpr int dq_smem_bytes() const {
    if (sliced()) {
      return bytes_of(element) * dq_block_q * (head_dim + value_dim) +
             stages * dq_block_k * slice_bytes();
    }
    return bytes_of(element) * (head_dim + value_dim) * (dq_block_q + stages * dq_block_k);
  }

  // scores, their gradient, dk, dv and the tiles of q, k, v, do, dq that one step touches.
  constexpr long long tile_bytes() const {
    const long long scores = 2 * 4LL * block_q * block_k;
    const long long sums = 4LL * block_k * (head_dim + value_dim) + 4LL * block_q * head_dim;
    const long long inputs =
        static_cast<long long>(bytes_of(element)) * (block_q + block_k) * (head_dim + value_dim);
    return scores + sums + inputs;
  }

  friend constexpr bool operator==(const BackwardConfig&, const BackwardConfig&) = default;
};

}  // namespace dfa
