#pragma once

#include "dfa/dtype.h"
#include "spec/gpu_tiles.h"
#include "spec/target.h"

namespace dfa {

// What the copying thread of cuda_sm90 tells the others of a tile of q.
inline constexpr int kOrderBytes = 32;
inline constexpr int kVarlenOrderBytes = 48;
// Work tiles that a counter dealt out and that may be done again together (CountedTileScheduler).
inline constexpr int kCountedTilesAtOnce = 128;

// Where a key and its value lie (KeyPlace), of each of two tiles of keys.
inline constexpr int kKeyPlaceBytes = 16;

// Of cuda_sm90 with keys in pages: tiles whose pages are looked up ahead, the least rows of a box
// that is copied, eight being a period of the swizzle, and what those who copy boxes are told in.
inline constexpr int kPagesAhead = 2, kLeastBoxRows = 8, kToldBytes = 64;

// Of cuda_sm90 in e4m3 where v is transposed in the kernel: stages of v as it lies, the warps that
// transpose, and what a stage has beside its tile, two barriers and a word.
inline constexpr int kRawStages = 2, kTransposers = 3, kRawStageBytes = 24;

// What a block of cuda_sm90 notes in shared memory about work tiles to be done again.
inline constexpr int kRecomputeBytes = 192;

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
  // Neighbouring thread blocks, 1 or 2, that own neighbouring tiles of q and copy k and v together.
  int cluster = 1;
  // Columns of q, from the first, that stay in registers as left operands of scores: products then
  // read less shared memory.
  int q_columns_in_regs = 0;
  // Query heads, up to 16, of heads above kMostColumns up to 64, that read the same keys and are
  // neighbouring rows of a tile. A query has
  // as many rows as the least power of two that holds them; what is left of those is not stored.
  int pack_gqa = 1;
  // Work tiles that fill no whole round of so many blocks, or pairs, are dealt out in as many equal
  // splits of their keys (stream-K, split-KV): no multiprocessor is idle in the last round, or
  // where work tiles are few. What a split leaves goes to the workspace, from which a second kernel
  // combines it. 0: whole work tiles alone.
  int num_splits = 0;
  // Of GPU targets: packed sequences, whose lengths the kernel reads (SeqlenInfo).
  bool varlen = false;
  // Of GPU targets: what becomes of logits (LogitTransform, ExponentLogits), as the problem says.
  bool softcap = false;
  bool alibi = false;
  bool bias = false;
  bool bias_fp32 = false;  // of cuda_sm90: its values are, and not copied to shared memory
  bool sink = false;
  // Of GPU targets: packed sequences whose keys lie in pages, which a block table names.
  bool paged = false;
  // Of GPU targets: the mask is of chunks or of a prefix (RangeMask), as the problem says.
  bool ranges = false;
  bool dropout = false;  // of GPU targets: DropoutMask
  bool blocks = false;   // of GPU targets: the problem has lists of blocks (BlockLists)
  bool text = false;     // of GPU targets: a mask_mod or a score_mod (UserText)
  // Of cuda_sm80 in 16 bits, and of cuda_sm90 with heads above kMostColumns where they are packed,
  // and of few queries a sequence, dense or packed: the keys of all sequences are dealt out on the
  // device, by the lengths, in num_splits equal parts for as many thread blocks of each head; what
  // splits of a sequence leave is combined in the same kernel. Warps share a tile's keys, its rows
  // are those of pack_gqa heads. The kernel is the same for every num_splits and split_keys.
  bool split_kv = false;
  // Keys of a split, the same in every batch, twice as many and so on of sequences that would have
  // more than kMostFixedSplits; 0: as lengths and num_splits give it.
  int split_keys = 0;
  // Of split_kv: k and v are in e4m3 beside q of 16 bits. They are widened to fp16 between shared
  // memory and the products, which are of fp16 whatever q is.
  bool kv_e4m3 = false;
  // Of cuda_sm90 in e4m3: blocks of rows of q, k and v have factors of their own (descale_rows).
  bool descale_blocks = false;
  // Likewise: v comes as it lies, and warps beside the one that copies transpose it in shared
  // memory. Else pack_values has transposed it before.
  bool transpose_values = false;

  // Of cuda_sm90 in bf16, whose range is fp32's: a row's reference is the maximum of the first tile
  // where it sees a key, whatever comes later; what leaves that range is done again.
  constexpr bool static_max() const {
    return target == Target::cuda_sm90 && element == DType::bf16 && !sliced();
  }
  // Of cuda_sm90 with one stage of q: the output leaves through a place of its own, half its
  // columns at a time. Boxes are stored whole.
  constexpr bool own_output() const {
    return target == Target::cuda_sm90 && bytes_of(element) == 2 && q_stages == 1 &&
           value_dim > 64 && pack_gqa == query_rows();
  }
  // Of cuda_sm90 in e4m3, where sums keep 14 bits: a product of weights and v starts anew, of as
  // many columns as registers last for beside the output that it is added to.
  constexpr int value_parts() const {
    if (value_dim <= 128) return 1;
    return value_dim <= 192 ? 2 : 4;
  }

  constexpr int page_bytes() const { return paged ? kToldBytes : 0; }

  // Of cuda_sm90, of each stage of k where tiles are those of lists.
  constexpr int listed_step_bytes() const { return blocks ? kListedStepBytes * stages : 0; }

  // Work tiles that a counter deals out (CountedTileScheduler).
  constexpr bool counted_tiles() const { return varlen || blocks; }
  constexpr int noted_bytes() const { return counted_tiles() ? 4 * (kCountedTilesAtOnce + 4) : 0; }
  constexpr int order_bytes() const { return varlen ? kVarlenOrderBytes : kOrderBytes; }

  // Rows of q that are dealt out together, and what they are of.
  constexpr int work_tile_rows() const { return cluster * block_q; }
  constexpr int work_tile_queries() const { return work_tile_rows() / query_rows(); }
  constexpr int query_rows() const {
    int rows = 1;
    while (rows < pack_gqa) rows *= 2;
    return rows;
  }

  constexpr int threads() const {
    return 32 * warps + (target == Target::cuda_sm90 ? kGroupThreads : 0);
  }
  constexpr int warp_rows() const { return split_kv ? block_q : block_q / warps; }
  constexpr int warp_keys() const { return split_kv ? block_k / warps : block_k; }  // of a tile
  constexpr DType kv_element() const { return kv_e4m3 ? DType::e4m3 : element; }

  // Fragments of q stay in registers where there is room beside scores and output, and keys that
  // are widened.
  constexpr bool q_in_registers() const {
    return bytes_of(element) == 2 && warp_rows() * head_dim <= 2048 &&
           warp_rows() * (head_dim / 2 + value_dim + warp_keys()) <= (kv_e4m3 ? 144 : 176) * 32;
  }

  // Are heads in slices? And the same kernel's configuration of one slice.
  constexpr bool sliced() const { return head_dim > kMostColumns || value_dim > kMostColumns; }
  constexpr ForwardConfig of_slice() const {
    ForwardConfig slice = *this;
    slice.head_dim = columns_of_slice(head_dim);
    slice.value_dim = columns_of_slice(value_dim);
    return slice;
  }
  // Thread blocks that sum a slice each. On cuda_sm90 one has all, two warpgroups half each.
  constexpr int output_slices() const {
    return target == Target::cuda_sm90 ? 1 : value_dim / of_slice().value_dim;
  }
  // Of cuda_sm90 in slices: columns of k or v that come at once, in one of `stages` places.
  static constexpr int piece_columns() { return 128; }
  constexpr int widest_dim() const { return head_dim > value_dim ? head_dim : value_dim; }

  // One tile of q, which the output reuses, and `stages` of k and v; in slices `stages` of one.
  constexpr int smem_bytes() const {
    const int widest = head_dim > value_dim ? head_dim : value_dim;
    if (target == Target::cuda_sm90 && bytes_of(element) == 4) {  // three planes of bf16
      return 6 * (block_q * round_up(head_dim, 64) +
                  stages * block_k * (round_up(head_dim, 64) + round_up(value_dim, 64))) +
             16 + 32 * stages;
    }
    if (target == Target::cuda_sm90 && sliced()) {  // weights, maxima, sums of two warpgroups
      const int rings = 2 * stages * (block_k * 2 * piece_columns() + 16);
      return 2 * kGroupRows * (head_dim + 2 * block_k) + rings + 16 * kGroupRows +
             16 * kGroupThreads + 16 + order_bytes();
    }
    if (target == Target::cuda_sm90) {
      return q_stages * block_q / kGroupRows * q_group_bytes() +
             stages * (k_tile_bytes() + v_tile_bytes()) + output_bytes() + bias_bytes() +
             16 * (q_stages + 2 * stages) + order_bytes() * q_stages +
             (static_max() ? kRecomputeBytes + noted_bytes() : 0) + page_bytes() +
             listed_step_bytes() + raw_bytes();
    }
    if (sliced()) {
      const ForwardConfig slice = of_slice();
      const int columns = head_dim > slice.value_dim ? head_dim : slice.value_dim;
      return bytes_of(element) * (block_q * columns + stages * block_k * slice.widest_dim());
    }
    const int keys = bytes_of(kv_element()) * stages * block_k * (head_dim + value_dim);
    const int owned = bytes_of(element) * block_q * widest;
    if (!split_kv) return owned + keys;
    const int outputs = round_up(4 * warps * block_q * (split_output_row() + 1), 128);
    return owned + (keys > outputs ? keys : outputs) + 2 * block_k * kKeyPlaceBytes +
           split_factor_bytes();
  }

  // Of split_kv: columns of a warp's output in shared memory, where rows are apart so that lanes
  // meet other banks. They write two columns at a time, with keys in e4m3 four.
  constexpr int split_output_row() const { return value_dim + (kv_e4m3 ? 16 : 8); }
  // Likewise: what scores of each row are multiplied by, and outputs (SplitKvE4m3); 16-byte steps.
  constexpr int split_factor_bytes() const { return kv_e4m3 ? 4 * (block_q + 4) : 0; }

  // Of cuda_sm90: registers of a thread that copies, and of one with queries. A block's are dealt
  // out evenly when it starts, then those that copy hand back.
  constexpr int copier_registers() const {
    if (paged && block_q <= 2 * kGroupRows) return 40;  // there are registers for all
    return block_q / kGroupRows == 3 || cluster > 1 || paged || blocks ? 32 : 24;
  }
  constexpr int query_registers() const {
    constexpr int kMultiprocessor = 65536, kMostAtStart = 168, kMost = 240;
    const int even = kMultiprocessor / threads() / 8 * 8;
    const int dealt = (even < kMostAtStart ? even : kMostAtStart) * threads();
    const int left =
        (dealt - copier_registers() * kGroupThreads) / (threads() - kGroupThreads) / 8 * 8;
    return left < kMost ? left : kMost;
  }

  // Of cuda_sm90: q of one warpgroup, in panels; the output takes its place.
  constexpr int q_group_bytes() const {
    const int q_row = panel_row_bytes(element, head_dim);
    const int o_row = panel_row_bytes(output_of(element), value_dim);
    return kGroupRows * (q_row > o_row ? q_row : o_row);
  }
  // Of cuda_sm90, of one stage. In e4m3 v is transposed, keys side by side (pack_values).
  constexpr int k_tile_bytes() const { return block_k * panel_row_bytes(element, head_dim); }
  constexpr int v_tile_bytes() const {
    if (narrow_values()) return value_dim * block_k;
    if (element == DType::e4m3) return value_dim * panel_row_bytes(element, block_k);
    return raw_tile_bytes();
  }
  // Of `transpose_values`: do rows of v have 64 bytes, with the swizzle of those? And what a
  // panel's rows have of v in e4m3.
  constexpr bool narrow_values() const { return transpose_values && block_k == 64; }
  constexpr int v_row_bytes() const { return narrow_values() ? 64 : 128; }
  // Of `transpose_values`: v as it lies, and all of its stages.
  constexpr int raw_tile_bytes() const { return block_k * panel_row_bytes(element, value_dim); }
  constexpr int raw_bytes() const {
    return transpose_values ? kRawStages * (raw_tile_bytes() + kRawStageBytes) : 0;
  }

  // Of cuda_sm90, where half of the output has a place of its own: its columns, and bytes.
  constexpr int output_columns() const { return own_output() ? round_up(value_dim, 128) / 2 : 0; }
  constexpr int output_bytes() const { return 2 * block_q * output_columns(); }

  // Of cuda_sm90: copies of a bias of a tile.
  constexpr int bias_bytes() const {
    return bias && !bias_fp32 ? block_q * bias_row_bytes(block_k) : 0;
  }

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

}  // namespace dfa
