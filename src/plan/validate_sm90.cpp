#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>

#include "plan/registers.h"
#include "plan/rules.h"
#include "plan/validate_gpu.h"
#include "spec/config_names.h"
#include "spec/user_text.h"

namespace dfa {

Verdict validate_sm90_dim(const char* field, int value, const char* name, std::int64_t dim) {
  return rules::all({
      rules::require(sm90_head_dim(dim) != 0, "cuda_sm90 has d and dv up to ", kMostColumns,
                     ", not ", name, "=", dim),
      rules::require(value == sm90_head_dim(dim), field, "=", value, " but ", name, "=", dim,
                     " takes ", sm90_head_dim(dim), " of cuda_sm90"),
  });
}

// The copy engine takes no stride of zero.
Verdict validate_sm90_map(const char* name, const Strides& s, std::int64_t b, std::int64_t h,
                          std::int64_t rows, int step) {
  constexpr std::int64_t kLongestStride = std::int64_t{1} << 39;  // elements; the map counts bytes
  const auto fits = [step](std::int64_t stride, std::int64_t size) {
    return size == 1 || (stride > 0 && stride % step == 0 && stride < kLongestStride);
  };
  return rules::require(fits(s.batch, b) && fits(s.head, h) && fits(s.row, rows), "strides of ",
                        name, " (", s.batch, ",", s.head, ",", s.row,
                        ") are not positive multiples of ", step,
                        " elements, as the copy engine steps");
}

namespace {

using namespace rules;

// Columns of a product that ptx/wgmma.cuh has.
constexpr int kKeys[] = {64, 80, 96, 112, 128, 144, 160, 176, 192, 256};
constexpr int kMostShares = 256;
constexpr int kMostSlicedHeads = kGroupRows;  // that are rows of a tile
constexpr int kMaxGroups = 4;
constexpr int kMaxStages = 4;
constexpr int kBitsOfWord = 32;
constexpr int kKeysOfDraw = 32;                           // DropoutMask
constexpr int kMostPairValues = 192, kWidePairKeys = 64;  // else 80 keys spill 16 bytes
constexpr int kMostRegistersHolding = 232;  // with columns of q among them; from 236 on some spill
constexpr int kMostWithLogits = 224;        // and beside softcap, ALiBi or a bias
constexpr int kMostBiasDim = 192, kMostBiasTile = 128;  // beyond, some spill
constexpr int kNarrowBiasDim = 96, kMostBiasKeys = 96;  // beside splits

// For a pair: at 120, a sine, the portable kernels have 1.09 times the rate.
constexpr int kMostTextInstructions = 112;

constexpr const char* kNoE4m3Cache = "cuda_sm90 takes no cache in e4m3";
constexpr const char* kListsAndRanges =
    "cuda_sm90 takes lists of blocks beside windows, not beside chunked and prefix masks";

constexpr int kBackwardStages = 2;
constexpr int kBackwardWarps = 8;
constexpr int kNarrowDim = 128;  // up to here a warpgroup has dk and dv of 64 keys
constexpr int kWideDim = 192;

// Kernels of 16 bits; those of fp32 have rules of their own (validate_fp32x3.cpp).
Verdict validate_element(DType element, const Problem& p) {
  return all({
      require(element == p.dtype, "element=", name_of(element), " but the problem is ",
              name_of(p.dtype)),
      require(bytes_of(p.dtype) == 2, "cuda_sm90 multiplies fp16, bf16 and fp32, not ",
              name_of(p.dtype)),
  });
}

// Of both passes: the card, the element type, lengths and strides.
template <typename Config>
Verdict validate_problem(const Config& c, const Problem& p, const Limits& limits) {
  constexpr int kStep = 8;  // the copy engine steps in 16 bytes
  const std::int64_t b = p.batches(), q_rows = p.q_rows(), k_rows = p.k_rows();
  return all({
      require(limits.highest == Target::cuda_sm90, "cuda_sm90 runs on compute capability 9.0 only"),
      validate_element(c.element, p),
      validate_ranges_said(c.ranges, p),
      validate_blocks_said(c.blocks, p),
      validate_lengths(p),
      validate_sm90_map("q", p.q(), b, p.hq, q_rows, kStep),
      validate_sm90_map("k", p.k(), b, p.hk, k_rows, kStep),
      validate_sm90_map("v", p.v(), b, p.hk, k_rows, kStep),
      validate_sm90_map("o", p.o(), b, p.hq, q_rows, kStep),
  });
}

template <typename Config>
Verdict validate_head_dims(const Config& c, const Problem& p) {
  return all({
      validate_sm90_dim("head_dim", c.head_dim, "d", p.d),
      validate_sm90_dim("value_dim", c.value_dim, "dv", p.dv),
  });
}

Verdict validate_shape(const ForwardConfig& c) {
  const int groups = c.block_q / kGroupRows;
  const bool pair_keeps_output = c.cluster > 1 && !c.own_output();
  return all({
      require(c.block_q % kGroupRows == 0 && groups >= 1 && groups <= kMaxGroups,
              "block_q=", c.block_q, "; 64, 128, 192 or 256, 64 a warpgroup"),
      require(c.warps == 4 * groups && c.ctas == 1, "block_q=", c.block_q,
              " takes warps=", 4 * groups, " and ctas=1 of cuda_sm90"),
      require(c.cluster == 1 || c.cluster == 2, "cluster=", c.cluster, "; 1 or 2"),
      require(!pair_keeps_output || c.value_dim <= kMostPairValues || c.block_k <= kWidePairKeys,
              "block_k=", c.block_k, " but pairs with value_dim above ", kMostPairValues,
              " whose output has no place of its own have registers for ", kWidePairKeys),
      require(std::ranges::count(kKeys, c.block_k) == 1, "block_k=", c.block_k,
              "; 64 to 144 in steps of 16, 160, 176, 192 or 256"),
      require(c.stages >= 2 && c.stages <= kMaxStages && c.q_stages >= 1 && c.q_stages <= 2,
              "stages=", c.stages, ", q_stages=", c.q_stages, "; 2 to ", kMaxStages, " and 1 or 2"),
      require(c.q_columns_in_regs % 16 == 0 && c.q_columns_in_regs <= c.head_dim,
              "q_columns_in_regs=", c.q_columns_in_regs,
              "; a multiple of 16 up to head_dim=", c.head_dim),
      require(c.pack_gqa >= 1 && c.pack_gqa <= kMostPackedHeads, "pack_gqa=", c.pack_gqa, "; 1 to ",
              kMostPackedHeads),
      require(c.num_splits >= 0 && c.num_splits <= kMostShares, "num_splits=", c.num_splits,
              "; 0 to ", kMostShares),
      require(c.num_splits == 0 || (c.block_q <= kMostSharedQueries && !pair_keeps_output),
              "num_splits=", c.num_splits, " takes, for want of registers, block_q up to ",
              kMostSharedQueries, " and of pairs an output with a place of its own (q_stages=1)"),
  });
}

Verdict validate_pack_gqa(const ForwardConfig& c, const Problem& p) {
  const std::int64_t group = p.hq / p.hk;
  return all({
      require(p.sq * c.query_rows() <= kMostRows, "pack_gqa=", c.pack_gqa,
              " makes more rows of sq=", p.sq, " than ", kMostRows),
      require(c.pack_gqa == c.query_rows() || (c.block_q <= 2 * kGroupRows && c.cluster == 1),
              "pack_gqa=", c.pack_gqa, ", no power of two, has registers for block_q up to ",
              2 * kGroupRows, " and cluster=1"),
      require(group % c.pack_gqa == 0, "pack_gqa=", c.pack_gqa, " but ", group,
              " query heads read the same keys"),
  });
}

template <typename Config>
bool makes_logits(const Config& c) {
  return c.softcap || c.alibi || c.bias || c.text;
}

// A thread's two rows are of one head.
Verdict validate_bias(const ForwardConfig& c, const Problem& p) {
  if (!p.bias) return Verdict::yes();
  const bool alone = !c.softcap && !c.alibi && !c.text && !c.dropout && c.num_splits == 0 &&
                     !(c.varlen && c.bias_fp32);
  return all({
      require(!p.paged(), "cuda_sm90 adds no bias to logits of keys in pages; cuda_sm80 does"),
      require(!p.blocks, "cuda_sm90 adds no bias beside lists of blocks; cuda_sm80 does"),
      require(c.pack_gqa == 1, "pack_gqa=", c.pack_gqa, " but a bias takes 1 of cuda_sm90"),
      require((alone || c.block_q <= kMostBiasTile) && c.block_k <= kMostBiasTile,
              "block_q=", c.block_q, ", block_k=", c.block_k, " but a bias has registers for ",
              kMostBiasTile, " keys of cuda_sm90, and beside softcap, alibi, a text, dropout or ",
              "splits, or in fp32 of packed sequences, for as many queries"),
      require(c.num_splits == 0 || c.head_dim <= kNarrowBiasDim || c.block_k <= kMostBiasKeys,
              "block_k=", c.block_k, " but splits with a bias and d above ", kNarrowBiasDim,
              " have registers for ", kMostBiasKeys),
      require(std::max(c.head_dim, c.value_dim) <= kMostBiasDim, "cuda_sm90 adds biases for d and ",
              "dv up to ", kMostBiasDim, ", not d=", p.d, ", dv=", p.dv),
  });
}

// A text is in a kernel for every score of a thread's, twice.
Verdict validate_length_of_text(const Problem& p) {
  const int instructions = instructions_of_texts(p);
  return require(instructions <= kMostTextInstructions,
                 "cuda_sm90 takes a mask_mod and a score_mod of up to ", kMostTextInstructions,
                 " instructions a pair, and these have about ", instructions,
                 "; cuda_sm80 takes them");
}

Verdict validate_text(const ForwardConfig& c, const Problem& p) {
  if (!p.has_text()) return Verdict::yes();
  const int rows = kGroupRows * (c.varlen || c.value_dim > kGroupRows ? 2 : 3);
  return all({
      validate_length_of_text(p),
      require(!c.sliced(), "cuda_sm90 takes mask_mod and score_mod for d and dv up to ",
              kMostColumns, ", not d=", p.d, ", dv=", p.dv),
      require(!p.paged(), "keys in pages take no mask_mod and no score_mod on a GPU"),
      require(c.block_q <= rows, "block_q=", c.block_q,
              " but mask_mod and score_mod have registers for ", rows,
              c.varlen ? " of packed sequences" : "", " and value_dim=", c.value_dim,
              " of cuda_sm90"),
      require(!c.dropout || c.value_dim <= kNarrowDim,
              "mask_mod and score_mod beside dropout have registers for value_dim up to ",
              kNarrowDim, " of cuda_sm90"),
  });
}

Verdict validate_variant(const ForwardConfig& c, const Problem& p) {
  return all({
      validate_text(c, p),
      validate_bias(c, p),
      validate_logits(c, p),
      require(!makes_logits(c) || c.cluster == 1 || c.value_dim <= kMostPairValues,
              "cluster=2 with softcap, alibi or bias has registers for value_dim up to ",
              kMostPairValues),
  });
}

// Boxes of rows that lie in one page each, which leave a tile's swizzle as it is; the copy engine
// counts rows of the whole cache.
Verdict validate_pages(const ForwardConfig& c, const Problem& p) {
  if (!p.paged()) {
    return require(!c.paged, "paged=true is of keys in pages; this problem has none");
  }
  constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
  const auto are_rows = [&](const Strides& s) {
    if (p.k_batches() == 1) return true;
    return s.batch > 0 && s.row > 0 && s.batch % s.row == 0 &&
           p.k_batches() <= kMostRows / (s.batch / s.row);
  };
  return all({
      require(c.paged, "keys in pages take paged=true"),
      require(!p.kv, "cuda_sm90 takes no cache in e4m3"),
      require(!c.softcap || c.block_k <= kWidePairKeys ||
                  (c.value_dim <= kMostPairValues && c.block_q <= 2 * kGroupRows),
              "block_k=", c.block_k, " but pages with softcap and value_dim above ",
              kMostPairValues, " or block_q above ", 2 * kGroupRows, " have registers for ",
              kWidePairKeys),
      require(!(c.softcap && c.alibi) || std::min(c.head_dim, c.value_dim) <= kWideDim,
              "pages with softcap and alibi have registers for one head dim up to ", kWideDim),
      require(page_box_rows(p, c) % kLeastBoxRows == 0, "pages of ", p.page,
              " rows and tiles of block_k=", c.block_k, " have no common part in multiples of ",
              kLeastBoxRows, " rows, as cuda_sm90 copies them"),
      require(are_rows(p.k()) && are_rows(p.v()),
              "pages of k and v lie no whole numbers of rows apart, ", kMostRows,
              " in all at most, as the copy engine steps"),
  });
}

// Which blocks are neighbours, and how many splits there should be, no list of lengths says.
Verdict validate_sequences(const ForwardConfig& c, const Problem& p) {
  return all({
      validate_varlen(c.varlen, p),
      validate_pages(c, p),
      require(!c.split_kv && c.split_keys == 0, "split_kv=true of cuda_sm90 takes d and dv above ",
              kMostColumns),
      require(!c.kv_e4m3, kNoE4m3Cache),
      require(!c.varlen || (c.cluster == 1 && c.pack_gqa == 1 && c.num_splits == 0),
              "varlen=true takes cluster=1, pack_gqa=1 and num_splits=0"),
  });
}

// A tile of queries has one list, which says of each of its tiles of keys what is seen; bits of a
// row are read by words.
Verdict validate_lists(const ForwardConfig& c, const Problem& p) {
  return all({
      validate_blocks(c, p),
      require(!c.blocks || (c.cluster == 1 && c.pack_gqa == 1 && c.num_splits == 0),
              "blocks=true takes cluster=1, pack_gqa=1 and num_splits=0 of cuda_sm90"),
      require(!c.blocks || !c.ranges, kListsAndRanges),
      require(!c.blocks || c.block_k % kBitsOfWord == 0, "block_k=", c.block_k,
              " but blocks=true of cuda_sm90 takes multiples of ", kBitsOfWord),
  });
}

// A draw is of queries i and i + 8 of a head by four eights of keys: a tile has whole draws.
Verdict validate_dropout(const ForwardConfig& c, const Problem& p) {
  constexpr int kNarrowDraws = 128, kWideDrawsKeys = 96;
  if (!c.dropout) return validate_dropout_said(c.dropout, p);
  return all({
      validate_dropout_said(c.dropout, p),
      require(c.block_k % kKeysOfDraw == 0, "block_k=", c.block_k,
              " but dropout=true of cuda_sm90 takes multiples of ", kKeysOfDraw),
      require(c.pack_gqa == 1, "pack_gqa=", c.pack_gqa, " but dropout=true takes 1"),
      require(c.value_dim <= kMostPairValues ||
                  (!c.varlen && !c.ranges && c.num_splits == 0 && c.element == DType::bf16),
              "dropout=true of cuda_sm90 has registers, with value_dim above ", kMostPairValues,
              ", for bf16, dense tensors, ranges=false and num_splits=0"),
      require(c.element == DType::bf16 || c.head_dim <= kNarrowDraws || c.block_k <= kWideDrawsKeys,
              "block_k=", c.block_k, " but dropout=true of fp16 with head_dim above ", kNarrowDraws,
              " has registers for ", kWideDrawsKeys),
      require(c.block_q < kMaxGroups * kGroupRows || (!c.varlen && !makes_logits(c) && !c.sink),
              "block_q=", c.block_q,
              " but dropout=true of packed sequences, softcap, alibi or sinks has registers for ",
              (kMaxGroups - 1) * kGroupRows),
      require(!c.paged, "keys in pages take no dropout on a GPU"),
      require(!c.blocks, "cuda_sm90 takes no dropout beside lists of blocks; cuda_sm80 does"),
  });
}

Verdict validate_registers(const ForwardConfig& c) {
  const int needed = expected_sm90_registers(c), all_there = c.query_registers();
  const int holding = makes_logits(c) ? kMostWithLogits : kMostRegistersHolding;
  const int there = c.q_columns_in_regs == 0 ? all_there : std::min(all_there, holding);
  return require(needed <= there, "a thread would need ", needed, " registers and has ", there);
}

// Heads above kMostColumns: two warpgroups share the columns of a tile's output.
Verdict validate_sliced_shape(const ForwardConfig& c) {
  constexpr int kWarps = 8, kStages = 4;
  return all({
      require(c.block_q == kGroupRows && c.block_k == kGroupRows && c.warps == kWarps &&
                  c.ctas == 1 && c.stages == kStages && c.q_stages == 1,
              "cuda_sm90 with d and dv above ", kMostColumns,
              " takes block_q=64, block_k=64, warps=", kWarps, ", stages=", kStages,
              ", q_stages=1 and ctas=1"),
      require(c.cluster == 1 && !c.pingpong && c.q_columns_in_regs == 0 && c.pack_gqa >= 1 &&
                  c.pack_gqa <= kMostSlicedHeads,
              "cuda_sm90 with d and dv above ", kMostColumns,
              " takes cluster=1, pingpong=false, q_columns_in_regs=0 and pack_gqa up to ",
              kMostSlicedHeads),
      require(c.num_splits >= 0 && (c.split_kv || c.num_splits <= kMostShares),
              "num_splits=", c.num_splits, "; 0 to ", kMostShares),
  });
}

Verdict validate_sliced_dims(int head_dim, int value_dim, const Problem& p, std::int64_t most) {
  return all({
      require(std::min(p.d, p.dv) > kMostColumns && p.d <= most && p.dv <= kMostSlicedValues,
              "cuda_sm90 has d and dv up to ", kMostColumns, ", or both above, up to ", most,
              " and ", kMostSlicedValues, ", not d=", p.d, ", dv=", p.dv),
      require(head_dim == sm90_sliced_dim(p.d) && value_dim == sm90_sliced_dim(p.dv),
              "head_dim=", head_dim, ", value_dim=", value_dim, " but d=", p.d, ", dv=", p.dv,
              " take ", sm90_sliced_dim(p.d), " and ", sm90_sliced_dim(p.dv), " of cuda_sm90"),
  });
}

// Few queries of packed sequences: the device deals out keys by the lengths.
Verdict validate_listed_splits(const ForwardConfig& c, const Problem& p) {
  return all({
      validate_varlen(c.varlen, p),
      validate_pages(c, p),
      require(c.varlen && c.num_splits >= 1, "split_kv=true of cuda_sm90 takes packed sequences, ",
              "and num_splits from 1 on"),
      require(!c.ranges, "split_kv=true takes windows alone, no chunks and prefixes"),
      require(!c.paged || !c.alibi, "cuda_sm90 with d and dv above ", kMostColumns,
              " has no registers for alibi of keys in pages"),
      require(c.split_keys >= 0 && c.split_keys % c.block_k == 0, "split_keys=", c.split_keys,
              " is no multiple of block_k=", c.block_k),
      require(!p.batch_invariant || c.split_keys > 0 || p.num_splits == 1,
              "batch_invariant takes split_keys, the size of splits, with split_kv=true"),
  });
}

Verdict validate_sliced_sequences(const ForwardConfig& c, const Problem& p) {
  if (c.split_kv) return validate_listed_splits(c, p);
  return all({
      require(!p.paged(), "cuda_sm90 with d and dv above ", kMostColumns,
              " takes keys in pages with split_kv=true"),
      validate_sequences(c, p),
  });
}

Verdict validate_slices(const ForwardConfig& c, const Problem& p, const Limits& limits) {
  return all({
      validate_problem(c, p, limits),
      validate_sliced_dims(c.head_dim, c.value_dim, p, kMostSlicedDims),
      validate_sliced_shape(c),
      require(!p.blocks && p.dropout == 0 && !p.bias, "cuda_sm90 with d and dv above ",
              kMostColumns, " takes no lists of blocks, dropout and biases"),
      require(!p.kv && !c.kv_e4m3, kNoE4m3Cache),
      validate_variant(c, p),
      validate_pack_gqa(c, p),
      validate_sliced_sequences(c, p),
      validate_smem(c.smem_bytes(), limits),
  });
}

// Likewise the columns of a gradient.
Verdict validate_slices(const BackwardConfig& c, const Problem& p, const Limits& limits) {
  return all({
      validate_problem(c, p, limits),
      validate_sliced_dims(c.head_dim, c.value_dim, p, kMostSlicedValues),
      require(c.block_q == kGroupRows && c.block_k == kGroupRows && c.warps == kBackwardWarps &&
                  c.ctas == 1 && c.stages == kBackwardStages && c.cluster == 1 &&
                  c.dq == DqAccumulation::separate && !c.persistent && !c.masked && !c.split_q &&
                  !c.gqa_inner_loop,
              "cuda_sm90's backward with d and dv above ", kMostColumns,
              " takes block_q=64, block_k=64, warps=", kBackwardWarps, ", stages=", kBackwardStages,
              ", ctas=1, cluster=1 and dq=separate"),
      validate_varlen(c.varlen, p),
      require(!p.blocks && p.mask.is_window(), "cuda_sm90's backward with d and dv above ",
              kMostColumns, " takes no lists of blocks, chunked and prefix masks"),
      require(p.dropout == 0 && !p.bias && !p.has_text() && p.softcap == 0 && !p.alibi,
              "cuda_sm90's backward with d and dv above ", kMostColumns,
              " takes plain logits without dropout"),
      validate_logits(c, p),
      validate_smem(c.sm90_sliced_smem_bytes(false), limits),
  });
}

bool changes_weights(const BackwardConfig& c) { return makes_logits(c) || c.dropout; }
// A warpgroup that has both gradients of its keys has no registers left to make logits. For a text,
// or for a dropout, it has, but where v is wider than 64 columns of q; the tile of keys says which
// it is.
bool is_wide(const BackwardConfig& c) {
  if (std::max(c.head_dim, c.value_dim) > kNarrowDim || c.softcap || c.alibi || c.bias) return true;
  const bool wider_values = c.head_dim <= kGroupRows && c.value_dim > kGroupRows;
  return (c.dropout || c.text) && (wider_values || c.block_k == kGroupRows);
}

// The sums of dq have as many columns as the problem's dq is padded to elsewhere too, and those of
// a wide one at least as many as two warpgroups share.
Verdict validate_dims(const BackwardConfig& c, const Problem& p) {
  return all({
      require(!is_wide(c) || changes_weights(c) || c.head_dim > kGroupRows,
              "cuda_sm90's backward of dv=", p.dv, " has d from 65 on, not ", p.d),
      require(c.head_dim == gpu_head_dim(p.d), "cuda_sm90's backward would pad d=", p.d, " to ",
              c.head_dim),
  });
}

// A warpgroup has 64 columns of dq, or half of the queries where there are no more columns.
Verdict validate_shape(const BackwardConfig& c) {
  const int keys = is_wide(c) ? kGroupRows : 2 * kGroupRows;
  const int queries = c.head_dim > kGroupRows || is_wide(c) ? 64 : 128;
  return all({
      require(c.block_k == keys && c.warps == kBackwardWarps && c.ctas == 1, "block_k=", c.block_k,
              ", warps=", c.warps, ", ctas=", c.ctas, "; cuda_sm90 takes ", keys, ", 8 and 1"),
      require(c.block_q == queries, "block_q=", c.block_q, "; head_dim=", c.head_dim, " takes ",
              queries, " of cuda_sm90"),
      require(c.stages == kBackwardStages, "stages=", c.stages, "; cuda_sm90 takes ",
              kBackwardStages),
  });
}

Verdict validate_dq(const BackwardConfig& c, const Problem& p) {
  const bool wide = is_wide(c), narrow_values = c.value_dim <= c.head_dim;
  const bool fused = c.dq == DqAccumulation::serialized_fused;
  return all({
      require(c.dq != DqAccumulation::separate,
              "dq=separate is of cuda_sm80; cuda_sm90 takes serialized, serialized_fused, atomic, "
              "atomic_fused"),
      require(!c.dq_atomic() || !p.deterministic, "dq=", name_of(c.dq),
              " has other bits in every run; deterministic problems take serialized, "
              "serialized_fused"),
      require(!c.dq_atomic() || narrow_values || wide, "dq=", name_of(c.dq),
              " of cuda_sm90 has value_dim up to head_dim: registers spill"),
      require(c.dq != DqAccumulation::atomic_fused || !wide || c.head_dim > kGroupRows,
              "dq=atomic_fused with softcap, alibi, bias or dropout has d from 65 on, not ", p.d),
      require(c.dq != DqAccumulation::atomic_fused || c.persistent,
              "dq=atomic_fused is of persistent=true"),
      require(!fused || (!wide && narrow_values),
              "dq=serialized_fused has value_dim up to head_dim, both up to ", kNarrowDim),
  });
}

// Blocks of keys that a list leaves out would be waited for where sums have an order.
Verdict validate_lists(const BackwardConfig& c, const Problem& p) {
  if (!c.blocks) return Verdict::yes();
  return all({
      require(!c.ranges, kListsAndRanges),
      require(!is_wide(c) && !c.dropout, "lists of blocks take d and dv up to ", kNarrowDim,
              " in cuda_sm90's backward, without softcap, alibi, bias and dropout; mask_mod and "
              "score_mod beside them take block_k=",
              2 * kGroupRows, ", and dv up to ", kGroupRows, " where d is up to ", kGroupRows),
      validate_side("block_q", c.block_q, "queries", p.blocks->block_q),
      validate_side("block_k", c.block_k, "keys", p.blocks->block_k),
      require(!p.deterministic && c.dq == DqAccumulation::atomic,
              "lists of blocks take dq=atomic of cuda_sm90, which has other bits in every run"),
      require(c.cluster == 1 && !c.persistent,
              "lists of blocks take cluster=1 and persistent=false of cuda_sm90's backward"),
  });
}

Verdict validate_pairs(const BackwardConfig& c) {
  const bool pair = c.cluster > 1, wide = is_wide(c);
  return all({
      require(c.cluster == 1 || c.cluster == 2, "cluster=", c.cluster, "; 1 or 2"),
      require(pair || (!c.persistent && !c.masked),
              "persistent=true and masked=true are of cluster=2"),
      require(!pair || !wide || (!c.masked && !(c.persistent && c.dq_serialized())),
              "cluster=2 with head_dim or value_dim above ", kNarrowDim,
              " takes masked=false, and persistent=true with dq=atomic or atomic_fused"),
      require(!pair || wide || c.head_dim > kGroupRows || c.value_dim <= kGroupRows,
              "cluster=2 of a backward with head_dim up to ", kGroupRows, " has value_dim up to ",
              kGroupRows, ", not ", c.value_dim),
  });
}

// The rest of what pairs may do.
Verdict validate_walk(const BackwardConfig& c, const Problem& p) {
  return all({
      require(!c.split_q || (c.persistent && !is_wide(c) && p.mask.left < 0),
              "split_q=true is of persistent=true, head_dim and value_dim up to ", kNarrowDim,
              ", without a left side of a mask"),
      require(
          !c.gqa_inner_loop || takes_gqa_inner_loop(c),
          "gqa_inner_loop=true is of cluster=2, dq=serialized or serialized_fused, head_dim and "
          "value_dim up to ",
          kNarrowDim, ", or head_dim up to ", kWideDim, " and value_dim up to head_dim"),
  });
}

// Where pairs of narrow heads pass by tiles, texts serialize their products (C7511).
Verdict validate_text(const BackwardConfig& c, const Problem& p) {
  if (!p.has_text()) return Verdict::yes();
  return all({
      validate_length_of_text(p),
      require(!c.masked || c.head_dim > kGroupRows,
              "mask_mod and score_mod have registers for masked=false with head_dim=", c.head_dim),
      require(!c.softcap && !c.alibi && !c.bias && !c.dropout,
              "cuda_sm90's backward takes mask_mod and score_mod without softcap, alibi, bias and "
              "dropout; cuda_sm80 does"),
  });
}

// What becomes of scores and of their weights. A step's biases are in registers at once.
Verdict validate_weights(const BackwardConfig& c, const Problem& p) {
  const int widest = std::max(c.head_dim, c.value_dim);
  const bool pair_adds = c.cluster > 1 && c.dq == DqAccumulation::atomic && !c.persistent;
  const bool packed_pair =
      is_wide(c) ? widest <= kNarrowDim : c.head_dim <= kGroupRows && !c.dq_serialized();
  return all({
      validate_text(c, p),
      validate_logits(c, p),
      validate_dropout_said(c.dropout, p),
      require(!c.bias || widest <= kNarrowDim, "cuda_sm90's backward adds biases for d and dv up ",
              "to ", kNarrowDim, ", not d=", p.d, ", dv=", p.dv),
      require(
          !c.dropout || widest <= kWideDim || (pair_adds && !c.ranges && !c.softcap && !c.alibi),
          "dropout=true of cuda_sm90's backward with head_dim or value_dim above ", kWideDim,
          " has registers for cluster=2, dq=atomic and persistent=false, without softcap, "
          "alibi, chunked and prefix masks"),
      require(!c.alibi || widest <= kWideDim || c.cluster == 1 || !c.dq_serialized(),
              "alibi=true of cuda_sm90's backward with head_dim or value_dim above ", kWideDim,
              " and dq=serialized has registers for cluster=1"),
      require(
          !c.dropout || !c.varlen || c.cluster == 1 || packed_pair,
          "dropout=true of packed sequences and cluster=2 of cuda_sm90's backward has registers "
          "for block_k=64 with head_dim and value_dim up to ",
          kNarrowDim, ", and for dq=atomic with head_dim up to ", kGroupRows),
  });
}

// Grids that stay or round dq themselves count work tiles ahead, which no list of lengths does.
Verdict validate_sequences(const BackwardConfig& c, const Problem& p) {
  const bool widest_pair = c.cluster > 1 && std::max(c.head_dim, c.value_dim) > kWideDim;
  return all({
      validate_varlen(c.varlen, p),
      require(!c.varlen || !widest_pair,
              "varlen=true and cluster=2 have registers for head_dim and value_dim up to ",
              kWideDim),
      require(
          !c.ranges || (!c.persistent && c.dq == DqAccumulation::atomic),
          "chunked and prefix masks take persistent=false and dq=atomic of cuda_sm90's backward, "
          "which has other bits in every run: others have no registers"),
      require(!c.varlen || (!c.persistent && !c.dq_fused() && !c.gqa_inner_loop),
              "varlen=true takes persistent=false, gqa_inner_loop=false and dq=serialized or "
              "atomic"),
  });
}

}  // namespace

int page_box_rows(const Problem& p, const ForwardConfig& c) {
  return static_cast<int>(std::gcd(p.page, std::int64_t{c.block_k}));
}

int sm90_head_dim(std::int64_t dim) {
  const int portable = gpu_head_dim(dim);
  return portable > kMostColumns ? 0 : std::max(64, portable);
}

int sm90_sliced_dim(std::int64_t dim) {
  constexpr int kLeast = 384;  // an output's halves are whole panels
  return dim > kMostColumns ? std::max(kLeast, gpu_head_dim(dim)) : 0;
}

bool takes_gqa_inner_loop(const BackwardConfig& c) {
  const bool fits = !is_wide(c) || (c.head_dim <= kWideDim && c.value_dim <= c.head_dim);
  return c.cluster == 2 && c.dq_serialized() && fits;
}

Verdict validate_sm90(const ForwardConfig& c, const Problem& p, const Limits& limits) {
  if (c.sliced()) return validate_slices(c, p, limits);
  const Verdict fits =
      all({validate_problem(c, p, limits), validate_head_dims(c, p), validate_shape(c)});
  if (!fits) return fits;
  return all({validate_variant(c, p), validate_lists(c, p), validate_dropout(c, p),
              validate_pack_gqa(c, p), validate_sequences(c, p),
              validate_smem(c.smem_bytes(), limits), validate_registers(c)});
}

Verdict validate_sm90(const BackwardConfig& c, const Problem& p, const Limits& limits) {
  if (c.sliced()) return validate_slices(c, p, limits);
  return all({validate_problem(c, p, limits), validate_head_dims(c, p), validate_dims(c, p),
              validate_shape(c), validate_lists(c, p), validate_dq(c, p), validate_pairs(c),
              validate_walk(c, p), validate_weights(c, p), validate_sequences(c, p),
              validate_smem(c.smem_bytes(), limits)});
}

}  // namespace dfa
