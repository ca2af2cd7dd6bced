#pragma once

#include "dfa/dtype.h"
#include "spec/target.h"

// Kernel configurations: plain values shared by the host compiler, nvcc and NVRTC, so nothing but
// include-free headers may be included here. The same value is template argument, cache key, log
// line and JSON field.
namespace dfa {

constexpr int round_up(int value, int step) { return (value + step - 1) / step * step; }

// GPU kernels are built for a few head dims; loads fill the columns between with zeros.
inline constexpr int kGpuHeadDims[] = {16, 32, 64, 96, 128, 192, 256};

constexpr int gpu_head_dim(long long d) {
  for (const int dim : kGpuHeadDims) {
    if (d <= dim) return dim;
  }
  return 0;
}

// wgmma (sm_90a) multiplies 64 rows with the 128 threads of a warpgroup.
inline constexpr int kGroupRows = 64;
inline constexpr int kGroupThreads = 128;

// What the copying thread of cuda_sm90 tells the others of a tile of q.
inline constexpr int kOrderBytes = 32;

// What a block of cuda_sm90 notes in shared memory about items to be done again.
inline constexpr int kRepairBytes = 192;

// And of a queue of items (ForwardConfig::dynamic).
inline constexpr int kNotedItems = 64;  // a power of two, more than are done again at once
inline constexpr int kItemQueueBytes = 24 + 8 * kNotedItems;

// Tile configuration of a FlashAttention forward kernel. On a GPU head_dim and value_dim are
// gpu_head_dim() of the problem's.
struct ForwardConfig {
  Target target = Target::cpu_portable;
  DType element = DType::fp32;
  int head_dim = 64;   // d
  int value_dim = 64;  // dv
  int block_q = 64;    // query rows of a tile
  int block_k = 64;    // keys of a tile
  // Of GPU targets only:
  int warps = 4;   // each owns block_q / warps query rows
  int stages = 2;  // tiles of k and v in shared memory
  int ctas = 2;    // thread blocks of one multiprocessor: bounds the registers of a thread
  // Of cuda_sm90 only; four more warps copy.
  int q_stages = 1;       // tiles of q, whose place the output takes
  bool pingpong = false;  // warpgroups take turns at the tensor cores
  // A row's reference is the maximum of the first tile where it sees a key, whatever comes later;
  // what leaves fp32's range is done again. Of bf16 alone, whose range is the same.
  bool fixed_reference = false;
  // A tile of v is not multiplied where the weights of a warpgroup all round to nothing (0015).
  bool skip = false;
  // Neighbouring thread blocks, 1 or 2, that own neighbouring tiles of q and copy k and v together.
  int cluster = 1;
  // With one stage of q: the output leaves through a place of its own, half its columns at a time.
  bool own_output = false;
  // Columns of q, from the first, that stay in registers as left operands of scores: products then
  // read less shared memory.
  int held_columns = 0;
  // Query heads, up to 16, that read the same keys and are neighbouring rows of a tile. A query has
  // as many rows as the least power of two that holds them; what is left of those is not stored.
  int packed_heads = 1;
  // Blocks take items from a counter in the workspace, whichever comes first, where else they are
  // dealt out beforehand.
  bool dynamic = false;
  // The items that fill no whole round of so many blocks, or pairs, are dealt out in as many equal
  // shares of their keys (stream-K, split-KV): no multiprocessor is idle in the last round, or
  // where items are few. What a piece of an item leaves goes to the workspace, from which a second
  // kernel joins it. 0: in whole items alone.
  int key_shares = 0;

  // Rows of q that are dealt out together, and what they are of.
  constexpr int item_rows() const { return cluster * block_q; }
  constexpr int item_queries() const { return item_rows() / query_rows(); }
  constexpr int query_rows() const {
    int rows = 1;
    while (rows < packed_heads) rows *= 2;
    return rows;
  }

  constexpr int threads() const {
    return 32 * warps + (target == Target::cuda_sm90 ? kGroupThreads : 0);
  }
  constexpr int warp_rows() const { return block_q / warps; }

  // Fragments of q stay in registers where there is room beside scores and output.
  constexpr bool q_in_registers() const {
    return bytes_of(element) == 2 && warp_rows() * head_dim <= 2048 &&
           warp_rows() * (head_dim / 2 + value_dim + block_k) <= 176 * 32;
  }

  // One tile of q, which the output reuses, and `stages` of k and v.
  constexpr int smem_bytes() const {
    const int widest = head_dim > value_dim ? head_dim : value_dim;
    if (target == Target::cuda_sm90 && bytes_of(element) == 4) {  // three planes of bf16
      return 6 * (block_q * round_up(head_dim, 64) +
                  stages * block_k * (round_up(head_dim, 64) + round_up(value_dim, 64))) +
             16 + 32 * stages;
    }
    if (target == Target::cuda_sm90) {
      return q_stages * block_q / kGroupRows * q_group_bytes() +
             2 * stages * block_k * (round_up(head_dim, 64) + round_up(value_dim, 64)) +
             output_bytes() + 16 * (q_stages + 2 * stages) + kOrderBytes * q_stages +
             (fixed_reference ? kRepairBytes : 0) + (dynamic ? kItemQueueBytes : 0);
    }
    return bytes_of(element) * (block_q * widest + stages * block_k * (head_dim + value_dim));
  }

  // Of cuda_sm90: registers of a thread that copies, and of one with queries. A block's are dealt
  // out evenly when it starts, then those that copy hand back.
  constexpr int copier_registers() const {
    return block_q / kGroupRows == 3 || cluster > 1 || dynamic ? 32 : 24;
  }
  constexpr int query_registers() const {
    constexpr int kMultiprocessor = 65536, kMostAtStart = 168, kMost = 240;
    const int even = kMultiprocessor / threads() / 8 * 8;
    const int dealt = (even < kMostAtStart ? even : kMostAtStart) * threads();
    const int left =
        (dealt - copier_registers() * kGroupThreads) / (threads() - kGroupThreads) / 8 * 8;
    return left < kMost ? left : kMost;
  }

  // Of cuda_sm90: q of one warpgroup, in columns of 64; the output takes its place.
  constexpr int q_group_bytes() const {
    return 2 * kGroupRows * round_up(head_dim > value_dim ? head_dim : value_dim, 64);
  }

  // Of cuda_sm90, where half of the output has a place of its own: its columns, and bytes.
  constexpr int output_columns() const { return own_output ? round_up(value_dim, 128) / 2 : 0; }
  constexpr int output_bytes() const { return 2 * block_q * output_columns(); }

  // fp32 values one tile keeps in cache: scores, accumulator, and one tile each of q, k and v.
  constexpr long long tile_bytes() const {
    const long long scores = 4LL * block_q * block_k;
    const long long output = 4LL * block_q * value_dim;
    const long long inputs =
        static_cast<long long>(bytes_of(element)) *
        (1LL * block_q * head_dim + 1LL * block_k * head_dim + 1LL * block_k * value_dim);
    return scores + output + inputs;
  }

  friend constexpr bool operator==(const ForwardConfig&, const ForwardConfig&) = default;
};

// How the backward gets dq: by a kernel of its own that computes the scores again, or from the
// kernel of dk and dv, whose blocks add to it in turn, or as they come (cuda_sm90 only): then its
// last bits change from run to run, and no plan takes it that was not asked for it.
enum class DqSum : int { recomputed, ordered, unordered };

constexpr const char* name_of(DqSum sum) {
  switch (sum) {
    case DqSum::recomputed: return "recomputed";
    case DqSum::ordered: return "ordered";
    case DqSum::unordered: return "unordered";
  }
  return "?";
}

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
  DqSum dq = DqSum::recomputed;
  int dq_block_q = 64;
  int dq_block_k = 64;
  int dq_warps = 4;
  int dq_ctas = 2;
  // Of cuda_sm90 only, 16 bits, d and dv up to 64: the warpgroup that copies makes dq (0019).
  bool dq_group = false;
  // Of cuda_sm90 only, 16 bits: turns are passed on by a second thread, beside the wait for the
  // next.
  bool early_turns = false;
  // Of cuda_sm90 only, 16 bits: blocks of a cluster, which share copies of q and do and make each
  // other's share of dq (0019).
  int cluster = 1;
  // Of cuda_sm90 only, 16 bits, dq=ordered, or unordered with zeroes_dq and persistent: an idle
  // warp, or in wide kernels those that compute, between works, round dq, and blocks at the end
  // (0019).
  bool rounds_dq = false;
  // Of cuda_sm90 only, 16 bits, dq=unordered, and persistent=false, rounds_dq or one of d and dv
  // above 128: an idle warp zeroes sums of dq of heads whose blocks come next (0019).
  bool zeroes_dq = false;
  // Of cuda_sm90 only, 16 bits, cluster=2: pairs of blocks stay and take keys of one
  // head after the other, so that the next ones' queries come meanwhile (0019).
  bool persistent = false;
  // Of cuda_sm90 only, 16 bits, d and dv up to 64, with cluster=2 up to 96, or one of both above
  // 128: the first columns of k and v are left operands in registers, as many of them as
  // sm90_held_k() and sm90_held_v() say (0019).
  bool keys_in_registers = false;
  // Of cuda_sm90 only, 16 bits, cluster=2, dq_group=false: a warpgroup has no products of tiles of
  // queries that see none of its own keys (0019).
  bool skips_hidden = false;
  // Of cuda_sm90 only, 16 bits, cluster=2, dq_group=false: the second block's keys lie between
  // those of the first one's two warpgroups (0019).
  bool nested_keys = false;
  // Of cuda_sm90 only, 16 bits, cluster=2, dq=unordered: the copy engine adds shares of dq from
  // shared memory (cp.reduce.async.bulk; 0019), at d 128, where there is room for half of them,
  // half.
  bool bulk_dq = false;
  // Of cuda_sm90 only, 16 bits, persistent=true, d and dv up to 128, without a left side of a mask:
  // works that do not fill a last round of pairs, or under a mask the longest of few, are in parts
  // of their queries (0019).
  bool parts_last = false;
  // Of cuda_sm90 only, 16 bits, cluster=2, dq=ordered, d and dv up to 128, or d up to 192 and dv
  // up to d: pairs walk a tile of queries for all query heads of their key head, then the next;
  // else one head after the other (0019).
  bool heads_by_tile = false;

  // Keys whose dq is added up at once.
  constexpr int turn_keys() const { return cluster * block_k; }
  // Blocks of a pair that each make dq of half of a tile, or half of its shares, take turns of
  // their own.
  constexpr int turns_of_tile() const { return dq_group || sm90_wide_pair() ? cluster : 1; }

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
             8 * (sm90_barriers() + 2 * cluster * stages) + sm90_notes_bytes() +
             sm90_queue_bytes() + sm90_rounding_bytes() + sm90_bulk_bytes();
    }
    const int row = bytes_of(element) * (head_dim + value_dim);
    return block_k * row + stages * block_q * (row + 8) + exchange_bytes();
  }

  // Of cuda_sm90, 16 bits: do warpgroups own a gradient each, one dv, one dk, of the same 64 keys?
  // Then one tells the other p, in fp32, and has ds back; else there are two tiles of ds. Of pairs
  // one more, wide ones one more and two of what comes from the other block, and its k.
  constexpr bool sm90_is_wide() const { return block_k == kGroupRows; }
  constexpr bool sm90_wide_pair() const { return sm90_is_wide() && cluster > 1; }
  constexpr int sm90_exchange_bytes() const {
    const int tile = 2 * block_k * round_up(block_q, 64);  // of ds
    const int others_k = cluster > 1 ? 2 * block_k * others_columns() : 0;
    if (sm90_is_wide()) return (cluster > 1 ? 6 : 3) * tile + others_k;
    return (cluster > 1 ? 3 : 2) * tile + others_k;
  }

  // Of pairs up to 64 columns: a thread with nothing else to do sends ds, a warpgroup's at a time.
  constexpr bool sm90_sends_ds() const {
    return cluster > 1 && !dq_group && !sm90_is_wide() && head_dim <= 64;
  }

  // Of cuda_sm90, with keys_in_registers: columns of k and of v that are left operands there, as
  // many as registers last for. Of wide pairs those who have dv hold k, those who have dk v.
  constexpr int sm90_held_k() const {
    return sm90_held(head_dim, value_dim, dq == DqSum::ordered ? 16 : 32);
  }
  constexpr int sm90_held_v() const {
    return sm90_held(value_dim, head_dim, dq == DqSum::ordered ? 64 : 48);
  }
  // sums: columns of the sums in the same registers; most_beside_256: where these are the most.
  constexpr int sm90_held(int columns, int sums, int most_beside_256) const {
    const int most = !sm90_is_wide() ? 64 : (sums <= 192 ? 128 : most_beside_256);
    return keys_in_registers ? (columns < most ? columns : most) : 0;
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
    return dq_group ? 6 : (early_turns ? 5 : 4);
  }
  // What the copying warp notes about the tile of each stage, and where it stands.
  constexpr int sm90_notes() const { return cluster > 1 ? stages + 1 : stages; }
  constexpr int sm90_notes_bytes() const { return dq_group ? 16 * sm90_notes() + 32 : 0; }

  // Of a pair that stays: barriers of its keys, two slots for works and two barriers for each.
  constexpr int sm90_queue_bytes() const { return persistent ? 8 * (3 + 8) : 0; }

  // Of cuda_sm90: sums of dq on their way through the warp that rounds them, 16 columns of 64
  // queries a slot, with a barrier each, in wide kernels through registers; and tiles that a block
  // at the end rounds.
  constexpr int rounding_slots() const { return 4; }
  constexpr int rounding_chunk_bytes() const { return 4 * 16 * 64; }
  constexpr int sm90_rounding_bytes() const {
    return rounds_dq && !sm90_is_wide() ? rounding_slots() * (rounding_chunk_bytes() + 8) + 8 : 0;
  }
  constexpr int rounded_tiles() const { return 3; }

  // Of cuda_sm90: shares of dq on their way to the sums, 64 bytes a thread, from a multiple of 16
  // on.
  constexpr int sm90_bulk_bytes() const { return bulk_dq ? 64 * 32 * warps + 8 : 0; }

  // Of cuda_sm90: those that round dq, a warpgroup for 64 columns and two at least.
  constexpr int sm90_dq_threads() const {
    const int groups = (head_dim + 63) / 64;
    return kGroupThreads * (groups > 2 ? groups : 2);
  }

  // Probabilities and score gradients of one step, rounded.
  constexpr int exchange_bytes() const {
    const int operands = sharing > 1 ? 2 : (dq == DqSum::ordered ? 1 : 0);
    return operands * bytes_of(element) * block_k * block_q;
  }

  // The tile of dq of one step: rows of a warp, and warps side by side.
  constexpr int ordered_rows() const {
    return block_q >= 64 && head_dim % (16 * warps * 32 / block_q) == 0 ? 32 : 16;
  }
  constexpr int ordered_parts() const { return warps * ordered_rows() / block_q; }

  // The owned tiles of q and do, and `stages` of k and v.
  constexpr int dq_smem_bytes() const {
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
