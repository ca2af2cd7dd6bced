#include "plan/validate_gpu.h"

#include <algorithm>

#include "plan/registers.h"
#include "plan/rules.h"
#include "spec/config_names.h"

namespace dfa {
namespace {

using namespace rules;

constexpr int kMaxWarps = 16;
constexpr int kMaxStages = 4;
constexpr int kLeastSide = 16;  // of a tile

Verdict validate_element(Target target, DType element, const Problem& p) {
  const char* dtype = name_of(p.dtype);
  return all({
      require(target != Target::cuda_sm75 || p.dtype == DType::fp16 || p.dtype == DType::fp32,
              "cuda_sm75 multiplies fp16 and fp32; ", dtype,
              " takes compute capability 8.0 and up"),
      require(p.dtype != DType::e4m3,
              "e4m3 has no kernel for this GPU; use fp16 or bf16, or backend cpu"),
      require(element == p.dtype, "element=", name_of(element), " but the problem is ", dtype),
  });
}

Verdict validate_dim(const char* field, int value, const char* name, std::int64_t dim, int taken) {
  return require(value == taken, field, "=", value, " but ", name, "=", dim, " takes ", taken);
}

Verdict validate_strides(const char* name, const Strides& s) {
  return require(s.batch % 8 == 0 && s.head % 8 == 0 && s.row % 8 == 0, "strides of ", name, " (",
                 s.batch, ",", s.head, ",", s.row,
                 ") are not multiples of 8 elements, one 16-byte access");
}

template <typename Config>
Verdict validate_problem(const Config& c, const Problem& p) {
  return all(
      {validate_element(c.target, c.element, p), validate_varlen(c.varlen, p),
       validate_logits(c, p),
       validate_dim("head_dim", c.head_dim, "d", p.d, portable_head_dim(p, p.d)),
       validate_dim("value_dim", c.value_dim, "dv", p.dv, portable_head_dim(p, p.dv)),
       validate_strides(p), validate_ranges_said(c.ranges, p), validate_blocks_said(c.blocks, p),
       validate_dropout_said(c.dropout, p),
       require(!c.dropout || !p.paged(), "keys in pages take no dropout on a GPU"),
       require(!c.text || !p.paged(), "keys in pages take no mask_mod and no score_mod on a GPU"),
       require(!c.text || c.target == Target::cuda_sm80, "mask_mod and score_mod take cuda_sm80"),
       validate_lengths(p)});
}

// Heads above kMostColumns are multiplied slice by slice (0010), by fewer kernels.
template <typename Config>
Verdict validate_slices_of_any(const Config& c, const Problem& p) {
  return all({
      require(!p.blocks, "lists of blocks take d and dv up to ", kMostColumns,
              " on a GPU, not d=", p.d, ", dv=", p.dv),
      require(!c.dropout, "dropout takes d and dv up to ", kMostColumns, " on a GPU, not d=", p.d,
              ", dv=", p.dv),
      require(c.target != Target::cuda_sm75, "cuda_sm75 has d and dv up to ", kMostColumns,
              ", not d=", p.d, ", dv=", p.dv),
  });
}

Verdict validate_slices(const ForwardConfig& c, const Problem& p) {
  if (!c.sliced()) return Verdict::yes();
  return all({
      validate_slices_of_any(c, p),
      require(!c.split_kv, "split_kv=true has d and dv up to ", kMostColumns, ", not d=", p.d,
              ", dv=", p.dv),
  });
}

Verdict validate_slices(const BackwardConfig& c, const Problem& p) {
  if (!c.sliced()) return Verdict::yes();
  return all({
      validate_slices_of_any(c, p),
      require(c.sharing == 1 && c.dq == DqAccumulation::separate, "d and dv above ", kMostColumns,
              " take sharing=1 and dq=separate"),
      require(!p.bias, "a bias has no backward with d or dv above ", kMostColumns),
  });
}

Verdict validate_blocks(const BackwardConfig& c, const Problem& p) {
  if (!p.blocks) return Verdict::yes();
  return all({validate_side("block_q", c.block_q, "queries", p.blocks->block_q),
              validate_side("block_k", c.block_k, "keys", p.blocks->block_k),
              validate_side("dq_block_q", c.dq_block_q, "queries", p.blocks->block_q),
              validate_side("dq_block_k", c.dq_block_k, "keys", p.blocks->block_k),
              require(!p.bias, "a bias beside lists of blocks has no backward on a GPU")});
}

// Sizes are divided by it.
Verdict validate_warps(int warps) {
  return require(warps >= 1 && warps <= kMaxWarps, "warps=", warps, "; 1 to ", kMaxWarps);
}

// One kernel's tiles: the rows that a thread block owns and those of a tile it walks.
struct Tiles {
  Target target;
  const char* owned_name;
  int owned;
  const char* walked_name;
  int walked;
  int warps;
  int sharing;
  int stages;
  int ctas;
  int smem_bytes;
  int registers;
};

Verdict validate_shape(const Tiles& t) {
  const int least = t.target == Target::cuda_sm75 ? 1 : 2;  // copies that are there at once
  const int groups = t.warps / t.sharing;
  return all({
      require(t.stages >= least && t.stages <= kMaxStages, "stages=", t.stages, "; ", least, " to ",
              kMaxStages),
      require(t.owned == 16 * groups || t.owned == 32 * groups, t.owned_name, "=", t.owned,
              "; 16 or 32 rows for each of ", groups, " warps"),
      require(t.walked == 16 || t.walked == 32 || t.walked == 64 || t.walked == 128, t.walked_name,
              "=", t.walked, "; 16, 32, 64 or 128"),
  });
}

// Kernels for sm_75 keep to what such a machine has, wherever they run.
Limits limits_of(Target target, const Limits& limits) {
  if (target != Target::cuda_sm75) return limits;
  Limits least = gpu_limits(75);
  least.highest = limits.highest;
  return least;
}

// The largest sides that fit, of tiles that do not. bytes_of_sides(owned, walked)
template <typename Bytes>
std::string sides_that_fit(const Tiles& t, int there, const Bytes& bytes_of_sides) {
  const auto text = [](const char* name, int side) { return name + ("=" + std::to_string(side)); };
  for (int owned = t.owned; owned >= kLeastSide; owned /= 2) {
    for (int walked = t.walked; walked >= kLeastSide; walked /= 2) {
      if (bytes_of_sides(owned, walked) > there) continue;
      return text(t.owned_name, owned) + ", " + text(t.walked_name, walked) + " would fit";
    }
  }
  return "no smaller ones would fit";
}

template <typename Bytes>
Verdict validate_smem(const Tiles& t, const Limits& limits, const Bytes& bytes_of_sides) {
  const Verdict fits = validate_smem(t.smem_bytes, limits);
  if (fits) return fits;
  return no(t.owned_name, "=", t.owned, ", ", t.walked_name, "=", t.walked, ": ", fits.reason, "; ",
            sides_that_fit(t, limits.smem_bytes, bytes_of_sides));
}

template <typename Bytes>
Verdict validate_resources(const Tiles& t, const Limits& of_device, const Bytes& bytes_of_sides) {
  constexpr int kThreadRegisters = 255, kRegisterStep = 8;
  const Limits limits = limits_of(t.target, of_device);
  const int block = limits.smem_bytes < limits.multiprocessor_smem_bytes ? kBlockSmemBytes : 0;
  const int there = limits.multiprocessor_smem_bytes;
  const bool resident = t.ctas >= 1 && t.ctas * (t.smem_bytes + block) <= there;
  const int share = kMultiprocessorRegisters / (32 * t.warps * std::max(t.ctas, 1));
  const int registers = std::min(kThreadRegisters, share / kRegisterStep * kRegisterStep);
  return all({
      validate_smem(t, limits, bytes_of_sides),
      require(resident, "ctas=", t.ctas, " thread blocks of ", t.smem_bytes,
              " bytes do not fit the ", there, " bytes of a multiprocessor"),
      require(t.registers <= registers, "a thread would need ", t.registers, " registers and has ",
              registers),
  });
}

template <typename Bytes>
Verdict validate_tiles(const Tiles& tiles, const Limits& limits, const Bytes& bytes_of_sides) {
  const Verdict shape = validate_shape(tiles);
  return shape ? validate_resources(tiles, limits, bytes_of_sides) : shape;
}

Tiles tiles_of(const ForwardConfig& c) {
  return {.target = c.target,
          .owned_name = "block_q",
          .owned = c.block_q,
          .walked_name = "block_k",
          .walked = c.block_k,
          .warps = c.warps,
          .sharing = c.split_kv ? c.warps : 1,
          .stages = c.stages,
          .ctas = c.ctas,
          .smem_bytes = c.smem_bytes(),
          .registers = expected_registers(c)};
}

Verdict validate_tiles(const ForwardConfig& c, const Limits& limits) {
  return validate_tiles(tiles_of(c), limits, [&c](int queries, int keys) {
    auto other = c;
    other.block_q = queries;
    other.block_k = keys;
    return other.smem_bytes();
  });
}

Tiles key_tiles_of(const BackwardConfig& c) {
  return {.target = c.target,
          .owned_name = "block_k",
          .owned = c.block_k,
          .walked_name = "block_q",
          .walked = c.block_q,
          .warps = c.warps,
          .sharing = c.sharing,
          .stages = c.stages,
          .ctas = c.ctas,
          .smem_bytes = c.smem_bytes(),
          .registers = expected_registers(c)};
}

Tiles query_tiles_of(const BackwardConfig& c) {
  return {.target = c.target,
          .owned_name = "dq_block_q",
          .owned = c.dq_block_q,
          .walked_name = "dq_block_k",
          .walked = c.dq_block_k,
          .warps = c.dq_warps,
          .sharing = 1,
          .stages = c.stages,
          .ctas = c.dq_ctas,
          .smem_bytes = c.dq_smem_bytes(),
          .registers = expected_dq_registers(c)};
}

Verdict validate_key_tiles(const BackwardConfig& c, const Limits& limits) {
  return validate_tiles(key_tiles_of(c), limits, [&c](int keys, int queries) {
    auto other = c;
    other.block_k = keys;
    other.block_q = queries;
    return other.smem_bytes();
  });
}

Verdict validate_query_tiles(const BackwardConfig& c, const Limits& limits) {
  return validate_tiles(query_tiles_of(c), limits, [&c](int queries, int keys) {
    auto other = c;
    other.dq_block_q = queries;
    other.dq_block_k = keys;
    return other.dq_smem_bytes();
  });
}

// Warps that share keys take columns in turns of 16, and queries in parts of one operand at least.
Verdict validate_sharing(const BackwardConfig& c) {
  const int queries = 2 * (bytes_of(c.element) == 4 ? 8 : 16);
  return all({
      require(c.sharing == 1 || (c.sharing == 2 && c.warps % 2 == 0), "sharing=", c.sharing,
              "; 1, or 2 for an even number of warps"),
      require(c.sharing == 1 ||
                  (c.head_dim % 32 == 0 && c.value_dim % 32 == 0 && c.block_q % queries == 0),
              "sharing=2 wants head_dim and value_dim in multiples of 32 and block_q in multiples "
              "of ",
              queries),
  });
}

// The fifth product takes dq by 16 rows, or 32, and columns in turns of 16: equal parts for warps.
bool divides_dq(const BackwardConfig& c) {
  if (c.warps < 1 || c.block_q > 32 * kMaxWarps) return false;
  const int parts = c.serialized_parts();
  return c.warps * c.serialized_rows() % c.block_q == 0 && parts >= 1 &&
         c.head_dim % (16 * parts) == 0;
}

Verdict validate_dq(const BackwardConfig& c) {
  if (c.dq == DqAccumulation::separate) return Verdict::yes();
  return all({
      require(!c.varlen, "packed sequences take dq=separate of cuda_sm80"),
      require(!c.bias, "biases take dq=separate of cuda_sm80"),
      require(!c.ranges, "chunked and prefix masks take dq=separate of cuda_sm80"),
      require(!c.dropout, "dropout takes dq=separate of cuda_sm80"),
      require(!c.text, "mask_mod and score_mod take dq=separate of cuda_sm80"),
      require(!c.blocks, "lists of blocks take dq=separate of cuda_sm80"),
      require(c.dq == DqAccumulation::serialized, "dq=", name_of(c.dq),
              " is of cuda_sm90; cuda_sm80 takes separate, serialized"),
      require(bytes_of(c.element) == 2, "dq=serialized takes fp16 and bf16"),
      require(c.target != Target::cuda_sm75, "dq=serialized takes cuda_sm80"),
      require(c.dq_block_q % c.block_q == 0, "dq=serialized wants dq_block_q=", c.dq_block_q,
              ", the rows of a dq semaphore, in multiples of block_q=", c.block_q),
      require(divides_dq(c), "dq=serialized wants block_q=", c.block_q, " by head_dim=", c.head_dim,
              " in equal parts for ", c.warps, " warps"),
  });
}

}  // namespace

Verdict validate_strides(const Problem& p) {
  return all({validate_strides("q", p.q()), validate_strides("k", p.k()),
              validate_strides("v", p.v()), validate_strides("o", p.o())});
}

Verdict validate_smem(int bytes, const Limits& limits) {
  return require(bytes <= limits.smem_bytes, "the tiles take ", bytes,
                 " bytes of shared memory but a thread block has ", limits.smem_bytes);
}

Verdict validate_registers(int needed, int there) {
  return require(needed <= there, "a thread would need ", needed, " registers and has ", there);
}

Verdict validate_varlen(bool varlen, const Problem& p) {
  return require(varlen == p.packed(),
                 varlen ? "varlen=true is of packed sequences; this problem is dense"
                        : "packed sequences take varlen=true");
}

Verdict validate_plain_logits(const Problem& p) {
  return require(p.plain(), "cuda_sm90 takes plain logits alone in ", name_of(p.dtype),
                 ", without softcap, alibi, bias, sink, mask_mod, score_mod and dropout");
}

Verdict validate_side(const char* field, int tile, const char* side, std::int64_t block) {
  return require(tile >= 1 && block % tile == 0, field, "=", tile,
                 " does not divide the blocks of ", block, " ", side);
}

Verdict validate_ranges_said(bool ranges, const Problem& p) {
  return require(ranges == !p.mask.is_window(), ranges
                                                    ? "ranges=true is of chunked and prefix masks"
                                                    : "chunked and prefix masks take ranges=true");
}

Verdict validate_dropout_said(bool dropout, const Problem& p) {
  return require(dropout == (p.dropout > 0), dropout ? "dropout=true is of problems with dropout"
                                                     : "dropout takes dropout=true");
}

Verdict validate_blocks_said(bool blocks, const Problem& p) {
  return require(blocks == p.blocks.has_value(),
                 blocks ? "blocks=true is of problems with lists of blocks"
                        : "lists of blocks take blocks=true");
}

Verdict validate_blocks(const ForwardConfig& c, const Problem& p) {
  if (!p.blocks) return Verdict::yes();
  return all({validate_side("block_q", c.block_q, "queries", p.blocks->block_q),
              validate_side("block_k", c.block_k, "keys", p.blocks->block_k)});
}

Verdict validate_mask(const Problem& p) {
  return all({
      require(p.mask.is_window(),
              "standard attention, and cuda_sm90 but in 16 bits, know windows, not chunked and "
              "prefix masks"),
      require(!p.blocks,
              "standard attention, and cuda_sm90 but in 16 bits, take no lists of blocks"),
  });
}

Verdict validate_lengths(const Problem& p) {
  constexpr std::int64_t kMaxLength = std::int64_t{1} << 28;  // rows are counted in 32 bits
  constexpr std::int64_t kMaxGrid = 2147483647;
  constexpr std::int64_t kLeastRows = 16;  // a thread block has one warp of 16 rows at least
  const std::int64_t rows = p.packed() ? std::max(p.total_q, p.total_k) : std::max(p.sq, p.sk);
  const std::int64_t tiles = (rows + kLeastRows - 1) / kLeastRows + (p.packed() ? 8 * p.b : 0);
  const std::int64_t heads = p.packed() ? p.hq : p.b * p.hq;
  return all({
      require(!p.packed() || rows <= kMaxLength, "the sequences' rows ", p.total_q, " and ",
              p.total_k, " pass ", kMaxLength),
      require(p.sq <= kMaxLength && p.sk <= kMaxLength, "lengths sq=", p.sq, ", sk=", p.sk,
              " pass ", kMaxLength),
      require(p.b <= kMaxGrid / p.hq && heads <= kMaxGrid / tiles,
              "b * hq * length makes more thread blocks than a grid holds"),
  });
}

namespace {

Verdict validate_split_kv(const ForwardConfig& c, const Problem& p) {
  constexpr int kMostPackedHeads = 16;
  const std::int64_t group = p.hq / p.hk;
  if (!c.split_kv) {
    return require(c.pack_gqa == 1 && c.num_splits == 0 && c.split_keys == 0,
                   "pack_gqa, num_splits and split_keys of cuda_sm80 take split_kv=true");
  }
  return all({
      require(c.target == Target::cuda_sm80 && bytes_of(c.element) == 2,
              "split_kv=true takes cuda_sm80, and fp16 or bf16"),
      require(!c.ranges && !c.blocks,
              "split_kv=true takes windows alone, no chunks, prefixes and "
              "lists of blocks"),
      require(!p.batch_invariant || c.split_keys > 0 || p.num_splits == 1,
              "batch_invariant takes split_keys, the size of splits, with split_kv=true"),
      require(c.num_splits >= 1, "split_kv=true takes num_splits from 1 on"),
      require(!c.dropout, "split_kv=true has no dropout"),
      require(!c.text, "split_kv=true has no mask_mod and no score_mod"),
      require(c.block_k % (16 * c.warps) == 0, "split_kv=true wants block_k=", c.block_k,
              " in multiples of 16 keys for each of ", c.warps, " warps"),
      require(c.split_keys >= 0 && c.split_keys % c.block_k == 0, "split_keys=", c.split_keys,
              " is no multiple of block_k=", c.block_k),
      require(c.pack_gqa >= 1 && c.pack_gqa <= kMostPackedHeads && group % c.pack_gqa == 0,
              "pack_gqa=", c.pack_gqa, "; a part, up to ", kMostPackedHeads, ", of the ", group,
              " query heads of a key head"),
      require(c.pack_gqa == 1 || (!p.alibi && !p.bias),
              "pack_gqa of split_kv=true takes no alibi and no bias"),
  });
}

}  // namespace

Verdict validate_portable(const ForwardConfig& c, const Problem& p, const Limits& limits) {
  const Verdict fits =
      all({validate_e4m3_cache(c, p, limits), validate_slices(c, p), validate_problem(c, p),
           validate_warps(c.warps), validate_split_kv(c, p), validate_blocks(c, p),
           require(c.paged == p.paged(),
                   c.paged ? "paged=true is of keys in pages; this problem has none"
                           : "keys in pages take paged=true")});
  return fits ? validate_tiles(c, limits) : fits;
}

Verdict validate_portable(const BackwardConfig& c, const Problem& p, const Limits& limits) {
  const Verdict fits =
      all({validate_slices(c, p), validate_problem(c, p), validate_warps(c.warps),
           validate_warps(c.dq_warps), validate_sharing(c), validate_dq(c), validate_blocks(c, p)});
  if (!fits) return fits;
  const Verdict keys = validate_key_tiles(c, limits);
  const bool other = c.dq == DqAccumulation::separate;  // has a kernel of dq of its own
  return keys && other ? validate_query_tiles(c, limits) : keys;
}

}  // namespace dfa
