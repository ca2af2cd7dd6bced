#include "spec/sm90_legality.h"

#include <algorithm>
#include <string>

#include "spec/gpu_legality.h"
#include "spec/lengths.h"
#include "spec/pack_gqa.h"
#include "spec/sm90_fp32x3_legality.h"
#include "spec/sm90_tiles.h"

namespace dfa {
namespace {

// Columns of a product that ptx/wgmma.cuh has.
constexpr int kKeys[] = {64, 80, 96, 112, 128, 144, 160, 176, 192, 256};
constexpr int kMostPackedHeads = 16;                       // rows that a warp stores at once
constexpr std::int64_t kMostRows = std::int64_t{1} << 28;  // are counted in 32 bits
constexpr int kMostShares = 256;
constexpr int kMaxGroups = 4;
constexpr int kMaxStages = 4;
constexpr int kOtherRegisters90 = 32;
constexpr int kMostPairValues = 192, kWidePairKeys = 64;  // else 80 keys spill 16 bytes
constexpr int kMostRegistersHolding = 232;  // with columns of q among them; from 236 on some spill
constexpr std::int64_t kLongestStride = std::int64_t{1} << 39;  // elements; the map counts bytes

std::string number(long long value) { return std::to_string(value); }

Verdict yes() { return Verdict::yes(); }

// Kernels of 16 bits; those of fp32 have rules of their own (sm90_fp32x3_legality.h).
Verdict check_element(DType element, const Problem& p) {
  if (element != p.dtype) {
    return Verdict::no(std::string("element=") + name_of(element) + " but the problem is " +
                       name_of(p.dtype));
  }
  if (bytes_of(p.dtype) == 2) return yes();
  return Verdict::no("cuda_sm90 multiplies fp16, bf16 and fp32, not " +
                     std::string(name_of(p.dtype)));
}

Verdict check_dim(const char* field, int value, const char* name, std::int64_t dim) {
  if (value == sm90_head_dim(dim)) return yes();
  return Verdict::no(std::string(field) + "=" + number(value) + " but " + name + "=" + number(dim) +
                     " takes " + number(sm90_head_dim(dim)) + " of cuda_sm90");
}

// The copy engine steps in 16 bytes, 8 elements, and takes no stride of zero.
Verdict check_map(const char* name, const Strides& s, std::int64_t b, std::int64_t h,
                  std::int64_t rows) {
  const auto fits = [](std::int64_t stride, std::int64_t size) {
    return size == 1 || (stride > 0 && stride % 8 == 0 && stride < kLongestStride);
  };
  if (fits(s.batch, b) && fits(s.head, h) && fits(s.row, rows)) return yes();
  return Verdict::no("strides of " + std::string(name) + " (" + number(s.batch) + "," +
                     number(s.head) + "," + number(s.row) +
                     ") are not positive multiples of 8 elements, as the copy engine steps");
}

Verdict check_maps(const Problem& p) {
  const std::int64_t b = p.batches(), q_rows = p.q_rows(), k_rows = p.k_rows();
  for (const Verdict& verdict :
       {check_map("q", p.q(), b, p.hq, q_rows), check_map("k", p.k(), b, p.hk, k_rows),
        check_map("v", p.v(), b, p.hk, k_rows), check_map("o", p.o(), b, p.hq, q_rows)}) {
    if (!verdict) return verdict;
  }
  return yes();
}

Verdict check_shape(const ForwardConfig& c) {
  const int groups = c.block_q / kGroupRows;
  if (c.block_q % kGroupRows != 0 || groups < 1 || groups > kMaxGroups) {
    return Verdict::no("block_q=" + number(c.block_q) + "; 64, 128, 192 or 256, 64 a warpgroup");
  }
  if (c.warps != 4 * groups || c.ctas != 1) {
    return Verdict::no("block_q=" + number(c.block_q) + " takes warps=" + number(4LL * groups) +
                       " and ctas=1 of cuda_sm90");
  }
  if (c.cluster != 1 && c.cluster != 2) {
    return Verdict::no("cluster=" + number(c.cluster) + "; 1 or 2");
  }
  if (c.cluster > 1 && !c.own_output() && c.value_dim > kMostPairValues &&
      c.block_k > kWidePairKeys) {
    return Verdict::no("block_k=" + number(c.block_k) + " but pairs with value_dim above " +
                       number(kMostPairValues) + " whose output has no place of its own have " +
                       "registers for " + number(kWidePairKeys));
  }
  if (std::find(std::begin(kKeys), std::end(kKeys), c.block_k) == std::end(kKeys)) {
    return Verdict::no("block_k=" + number(c.block_k) +
                       "; 64 to 144 in steps of 16, 160, 176, 192 or 256");
  }
  if (c.stages < 2 || c.stages > kMaxStages || c.q_stages < 1 || c.q_stages > 2) {
    return Verdict::no("stages=" + number(c.stages) + ", q_stages=" + number(c.q_stages) +
                       "; 2 to " + number(kMaxStages) + " and 1 or 2");
  }
  if (c.q_columns_in_regs % 16 != 0 || c.q_columns_in_regs > c.head_dim) {
    return Verdict::no("q_columns_in_regs=" + number(c.q_columns_in_regs) +
                       "; a multiple of 16 up to head_dim=" + number(c.head_dim));
  }
  if (c.pack_gqa < 1 || c.pack_gqa > kMostPackedHeads) {
    return Verdict::no("pack_gqa=" + number(c.pack_gqa) + "; 1 to " + number(kMostPackedHeads));
  }
  if (c.num_splits < 0 || c.num_splits > kMostShares) {
    return Verdict::no("num_splits=" + number(c.num_splits) + "; 0 to " + number(kMostShares));
  }
  if (c.num_splits > 0 && (c.block_q > kMostSharedQueries || (c.cluster > 1 && !c.own_output()))) {
    return Verdict::no("num_splits=" + number(c.num_splits) +
                       " takes, for want of registers, block_q up to " +
                       number(kMostSharedQueries) + " and of pairs an output with a place of its " +
                       "own (q_stages=1)");
  }
  return yes();
}

Verdict check_packed(const ForwardConfig& c, const Problem& p) {
  const std::int64_t group = p.hq / p.hk;
  if (p.sq * c.query_rows() > kMostRows) {
    return Verdict::no("pack_gqa=" + number(c.pack_gqa) + " makes more rows of sq=" + number(p.sq) +
                       " than " + number(kMostRows));
  }
  if (c.pack_gqa != c.query_rows() && (c.block_q > 2 * kGroupRows || c.cluster > 1)) {
    return Verdict::no("pack_gqa=" + number(c.pack_gqa) +
                       ", no power of two, has registers for block_q up to " +
                       number(2LL * kGroupRows) + " and cluster=1");
  }
  if (group % c.pack_gqa == 0) return yes();
  return Verdict::no("pack_gqa=" + number(c.pack_gqa) + " but " + number(group) +
                     " query heads read the same keys");
}

// Which blocks are neighbours, and how many splits there should be, no list of lengths says.
Verdict check_sequences(const ForwardConfig& c, const Problem& p) {
  if (const Verdict fits = check_varlen(c.varlen, p); !fits) return fits;
  if (c.varlen && !kPackedOnSm90) return Verdict::no(kNoPackedOnSm90);
  if (const Verdict plain = check_plain_logits(p); !plain) return plain;
  if (!c.varlen || (c.cluster == 1 && c.pack_gqa == 1 && c.num_splits == 0)) return yes();
  return Verdict::no("varlen=true takes cluster=1, pack_gqa=1 and num_splits=0");
}

Verdict check_resources(const ForwardConfig& c, const Limits& limits) {
  if (const Verdict fits = check_smem(c.smem_bytes(), limits); !fits) return fits;
  const int needed = expected_sm90_registers(c);
  const int there = c.q_columns_in_regs == 0 ? sm90_registers(c)
                                             : std::min(sm90_registers(c), kMostRegistersHolding);
  if (needed <= there) return yes();
  return Verdict::no("a thread would need " + number(needed) + " registers and has " +
                     number(there));
}

constexpr Sm90Tile kLeastTile{64, 64, 2, 1, false};

// Heads up to here would be padded to twice their size and more: portable kernels run them.
constexpr int kPortableDim = 32;

ForwardConfig config_of(const Problem& p, const Sm90Tile& t) {
  return {.target = Target::cuda_sm90,
          .element = p.dtype,
          .head_dim = sm90_head_dim(p.d),
          .value_dim = sm90_head_dim(p.dv),
          .block_q = t.block_q,
          .block_k = t.block_k,
          .warps = t.block_q / 16,
          .stages = t.stages,
          .ctas = 1,
          .q_stages = t.q_stages,
          .pingpong = t.pingpong,
          .cluster = t.cluster,
          .q_columns_in_regs = t.q_columns_in_regs,
          .pack_gqa = pack_gqa(p),
          .num_splits = t.num_splits,
          .varlen = p.packed()};
}

Sm90Tile tile_of(const ForwardConfig& c) {
  return {c.block_q, c.block_k,           c.stages,    c.q_stages, c.pingpong,
          c.cluster, c.q_columns_in_regs, c.num_splits};
}

}  // namespace

int sm90_head_dim(std::int64_t dim) {
  const int portable = gpu_head_dim(dim);
  return portable == 0 ? 0 : std::max(64, portable);
}

int expected_sm90_registers(const ForwardConfig& c) {
  const int scores = c.block_k / 2, weights = c.block_k / 4, output = c.value_dim / 2;
  return scores + weights + output + c.q_columns_in_regs / 4 + kOtherRegisters90;
}

int sm90_registers(const ForwardConfig& c) { return c.query_registers(); }

Verdict check_sm90_problem(DType element, int head_dim, int value_dim, const Problem& problem,
                           const Limits& limits) {
  if (limits.highest != Target::cuda_sm90) {
    return Verdict::no("cuda_sm90 runs on compute capability 9.0 only");
  }
  for (const Verdict& verdict :
       {check_element(element, problem), check_dim("head_dim", head_dim, "d", problem.d),
        check_dim("value_dim", value_dim, "dv", problem.dv), check_lengths(problem),
        check_maps(problem)}) {
    if (!verdict) return verdict;
  }
  return yes();
}

Verdict check_sm90(const ForwardConfig& config, const Problem& problem, const Limits& limits) {
  for (const Verdict& verdict :
       {check_sm90_problem(config.element, config.head_dim, config.value_dim, problem, limits),
        check_shape(config), check_packed(config, problem), check_sequences(config, problem)}) {
    if (!verdict) return verdict;
  }
  return check_resources(config, limits);
}

Verdict sm90_fits(const Problem& problem, const Limits& limits) {
  if (problem.dtype == DType::fp32) return fp32x3_fits(problem, limits);
  if (!sm90_candidates(problem, limits).empty()) return yes();
  if (const Verdict plain = check_plain_logits(problem); !plain) return plain;
  if (problem.packed() && !kPackedOnSm90) return Verdict::no(kNoPackedOnSm90);
  const Verdict verdict = check_sm90(config_of(problem, kLeastTile), problem, limits);
  if (!verdict) return verdict;
  return Verdict::no("cuda_sm90 would pad heads of up to " + number(kPortableDim) + " to 64");
}

namespace {

// Tiles in the order to try them; of packed sequences those first that were the fastest there, from
// so many rows on average on. Of the speed of the next best: d 128 1.07 (26 sequences of 16 to 2048
// rows), 1.11 (128 of 512), 0.98 (one of 8192 among short ones); d 64 1.18 (19 of 16 to 2048).
std::vector<Sm90Tile> tiles_to_try(const Problem& p, const Limits& limits) {
  if (!p.packed()) return sm90_tiles(p, limits.sm_count);
  struct VarlenTile {
    int dim;
    std::int64_t rows;
    Sm90Tile tile;
  };
  constexpr VarlenTile kFastest[] = {{64, 512, {256, 64, 4, 2, false}},
                                     {128, 0, {128, 64, 4, 2, false, 1, 128}}};
  std::vector<Sm90Tile> tiles = sm90_tiles(of_equal_lengths(p), limits.sm_count);
  for (const auto& [dim, rows, tile] : kFastest) {
    if (sm90_head_dim(p.d) == dim && sm90_head_dim(p.dv) == dim && p.total_q >= rows * p.b) {
      tiles.insert(tiles.begin(), tile);
    }
  }
  return tiles;
}

}  // namespace

std::vector<ForwardConfig> sm90_candidates(const Problem& problem, const Limits& limits) {
  std::vector<ForwardConfig> legal;
  if (std::max(problem.d, problem.dv) <= kPortableDim) return legal;
  if (problem.packed() && !kPackedOnSm90) return legal;
  for (const Sm90Tile& tile : tiles_to_try(problem, limits)) {
    const ForwardConfig config = config_of(problem, tile);
    if (std::none_of(legal.begin(), legal.end(),
                     [&](const ForwardConfig& c) { return tile_of(c) == tile; }) &&
        check_sm90(config, problem, limits)) {
      legal.push_back(config);
    }
  }
  return legal;
}

}  // namespace dfa
