#include "spec/gpu_legality.h"

#include <algorithm>
#include <span>
#include <string>

#include "spec/pack_gqa.h"
#include "spec/sm90_fp32x3_legality.h"
#include "spec/sm90_legality.h"

namespace dfa {
namespace {

constexpr std::int64_t kMaxLength = std::int64_t{1} << 28;  // rows are counted in 32 bits
constexpr std::int64_t kMaxGrid = 2147483647;
constexpr int kThreadRegisters = 255;
constexpr int kMaxWarps = 16;
constexpr int kMaxStages = 4;
constexpr int kRegisterStep = 8;

std::string number(long long value) { return std::to_string(value); }

Verdict yes() { return Verdict::yes(); }

Verdict check_element(Target target, DType element, const Problem& p) {
  if (target == Target::cuda_sm75 && p.dtype != DType::fp16 && p.dtype != DType::fp32) {
    return Verdict::no("cuda_sm75 multiplies fp16 and fp32; " + std::string(name_of(p.dtype)) +
                       " takes compute capability 8.0 and up");
  }
  if (p.dtype == DType::fp8) {
    return Verdict::no("cuda_sm80 multiplies fp16, bf16, tf32 and fp32; fp8 is not built");
  }
  if (element != p.dtype) {
    return Verdict::no(std::string("element=") + name_of(element) + " but the problem is " +
                       name_of(p.dtype));
  }
  return yes();
}

template <typename Config>
void set_logits(Config& c, const Problem& p) {
  c.softcap = p.softcap != 0;
  c.alibi = p.alibi;
  if constexpr (requires { c.sink; }) c.sink = p.sink;
}

Verdict check_dim(const char* field, int value, const char* name, std::int64_t dim) {
  if (value == gpu_head_dim(dim)) return yes();
  return Verdict::no(std::string(field) + "=" + number(value) + " but " + name + "=" + number(dim) +
                     " takes " + number(gpu_head_dim(dim)));
}

Verdict check_strides(const char* name, const Strides& s) {
  if (s.batch % 8 == 0 && s.head % 8 == 0 && s.row % 8 == 0) return yes();
  return Verdict::no("strides of " + std::string(name) + " (" + number(s.batch) + "," +
                     number(s.head) + "," + number(s.row) +
                     ") are not multiples of 8 elements, one 16-byte access");
}

template <typename Config>
Verdict check_logits(const Config& c, const Problem& p) {
  Config wanted = c;
  set_logits(wanted, p);
  if (wanted == c) return yes();
  return Verdict::no("softcap, alibi and sink are not those of the problem");
}

template <typename Config>
Verdict check_problem(const Config& c, const Problem& p) {
  for (const Verdict& verdict :
       {check_element(c.target, c.element, p), check_varlen(c.varlen, p), check_logits(c, p),
        check_dim("head_dim", c.head_dim, "d", p.d),
        check_dim("value_dim", c.value_dim, "dv", p.dv), check_strides(p), check_lengths(p)}) {
    if (!verdict) return verdict;
  }
  return yes();
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

Verdict check_shape(const Tiles& t) {
  const int least = t.target == Target::cuda_sm75 ? 1 : 2;  // copies that are there at once
  if (t.stages < least || t.stages > kMaxStages) {
    return Verdict::no("stages=" + number(t.stages) + "; " + number(least) + " to " +
                       number(kMaxStages));
  }
  const int groups = t.warps / t.sharing;
  if (t.owned != 16 * groups && t.owned != 32 * groups) {
    return Verdict::no(std::string(t.owned_name) + "=" + number(t.owned) +
                       "; 16 or 32 rows for each of " + number(groups) + " warps");
  }
  if (t.walked != 16 && t.walked != 32 && t.walked != 64 && t.walked != 128) {
    return Verdict::no(std::string(t.walked_name) + "=" + number(t.walked) + "; 16, 32, 64 or 128");
  }
  return yes();
}

// Kernels for sm_75 keep to what such a machine has, wherever they run.
Limits limits_of(Target target, const Limits& limits) {
  if (target != Target::cuda_sm75) return limits;
  Limits least = gpu_limits(75);
  least.highest = limits.highest;
  return least;
}

Verdict check_resources(const Tiles& t, const Limits& of_device) {
  const Limits limits = limits_of(t.target, of_device);
  const int block = limits.smem_bytes < limits.multiprocessor_smem_bytes ? kBlockSmemBytes : 0;
  if (const Verdict fits = check_smem(t.smem_bytes, limits); !fits) return fits;
  if (t.ctas < 1 || t.ctas * (t.smem_bytes + block) > limits.multiprocessor_smem_bytes) {
    return Verdict::no("ctas=" + number(t.ctas) + " thread blocks of " + number(t.smem_bytes) +
                       " bytes do not fit the " + number(limits.multiprocessor_smem_bytes) +
                       " bytes of a multiprocessor");
  }
  const int share = kMultiprocessorRegisters / (32 * t.warps * t.ctas);
  const int registers = std::min(kThreadRegisters, share / kRegisterStep * kRegisterStep);
  if (t.registers > registers) {
    return Verdict::no("a thread would need " + number(t.registers) + " registers and has " +
                       number(registers));
  }
  return yes();
}

Verdict check_tiles(const Tiles& tiles, const Limits& limits) {
  const Verdict shape = check_shape(tiles);
  return shape ? check_resources(tiles, limits) : shape;
}

Tiles tiles_of(const ForwardConfig& c) {
  return {.target = c.target,
          .owned_name = "block_q",
          .owned = c.block_q,
          .walked_name = "block_k",
          .walked = c.block_k,
          .warps = c.warps,
          .sharing = 1,
          .stages = c.stages,
          .ctas = c.ctas,
          .smem_bytes = c.smem_bytes(),
          .registers = expected_registers(c)};
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

// First of all, as sizes are divided by it.
Verdict check_warps(int warps) {
  if (warps >= 1 && warps <= kMaxWarps) return yes();
  return Verdict::no("warps=" + number(warps) + "; 1 to " + number(kMaxWarps));
}

// Warps that share keys take columns in turns of 16, and queries in parts of one operand at least.
Verdict check_sharing(const BackwardConfig& c) {
  if (c.sharing == 1) return yes();
  if (c.sharing != 2 || c.warps % 2 != 0) {
    return Verdict::no("sharing=" + number(c.sharing) + "; 1, or 2 for an even number of warps");
  }
  const int part = bytes_of(c.element) == 4 ? 8 : 16;
  if (c.head_dim % 32 == 0 && c.value_dim % 32 == 0 && c.block_q % (2 * part) == 0) return yes();
  return Verdict::no("sharing=2 wants head_dim and value_dim in multiples of 32 and block_q in " +
                     std::string("multiples of ") + number(2LL * part));
}

// The fifth product takes dq by 16 rows, or 32, and columns in turns of 16.
Verdict check_serialized(const BackwardConfig& c) {
  if (c.dq == DqAccumulation::separate) return yes();
  if (c.varlen) return Verdict::no("packed sequences take dq=separate of cuda_sm80");
  if (c.dq != DqAccumulation::serialized) {
    return Verdict::no(std::string("dq=") + name_of(c.dq) +
                       " is of cuda_sm90; cuda_sm80 takes separate, serialized");
  }
  if (bytes_of(c.element) != 2) return Verdict::no("dq=serialized takes fp16 and bf16");
  if (c.target == Target::cuda_sm75) return Verdict::no("dq=serialized takes cuda_sm80");
  if (c.dq_block_q % c.block_q != 0) {
    return Verdict::no("dq=serialized wants dq_block_q=" + number(c.dq_block_q) +
                       ", the rows of a turn, in multiples of block_q=" + number(c.block_q));
  }
  const int parts = c.serialized_parts();
  if (c.warps * c.serialized_rows() % c.block_q != 0 || parts < 1 ||
      c.head_dim % (16 * parts) != 0) {
    return Verdict::no("dq=serialized wants block_q=" + number(c.block_q) + " by head_dim=" +
                       number(c.head_dim) + " in equal parts for " + number(c.warps) + " warps");
  }
  return yes();
}

// Without asynchronous copies a second stage would only take room.
template <typename Config>
Config dims_of(const Problem& p, const Limits& limits) {
  const bool sm75 = limits.highest == Target::cuda_sm75;
  Config config{.target = sm75 ? Target::cuda_sm75 : Target::cuda_sm80,
                .element = p.dtype,
                .head_dim = gpu_head_dim(p.d),
                .value_dim = gpu_head_dim(p.dv),
                .stages = sm75 ? 1 : 2,
                .varlen = p.packed()};
  set_logits(config, p);
  return config;
}

// Tiles in the order to try them.
struct ForwardTile {
  int block_q, block_k, warps, stages, ctas;
};

constexpr ForwardTile kForwardTiles[] = {
    {128, 64, 4, 2, 2}, {128, 32, 4, 2, 2}, {128, 64, 8, 2, 1}, {128, 32, 8, 2, 1},
    {64, 64, 4, 2, 2},  {64, 32, 4, 2, 2},  {64, 64, 4, 2, 3},  {128, 64, 4, 3, 2},
    {128, 32, 4, 3, 2}, {64, 32, 4, 2, 1},  {32, 32, 2, 2, 1},
};
// fp32: rows are twice as long, and 32 keys keep the unrolled products in the instruction cache.
constexpr ForwardTile kWideForwardTiles[] = {
    {128, 32, 8, 2, 1}, {64, 32, 4, 2, 2}, {128, 32, 4, 2, 2},
    {64, 32, 4, 2, 1},  {64, 16, 4, 2, 1}, {32, 16, 2, 2, 1},
};

struct KeyTile {
  int block_k, block_q, warps, sharing, ctas;
};

constexpr KeyTile kKeyTiles[] = {
    {128, 32, 4, 1, 2}, {64, 64, 4, 2, 2}, {128, 64, 8, 2, 1}, {64, 64, 8, 2, 1}, {64, 32, 8, 2, 1},
    {64, 32, 4, 1, 2},  {64, 32, 4, 1, 1}, {32, 32, 4, 2, 1},  {16, 32, 2, 2, 1},
};

constexpr KeyTile kWideKeyTiles[] = {
    {64, 32, 4, 1, 2}, {64, 32, 4, 1, 1}, {64, 32, 8, 2, 1}, {32, 32, 4, 2, 1},
    {32, 16, 4, 2, 1}, {32, 16, 2, 1, 1}, {16, 16, 2, 2, 1}, {16, 16, 1, 1, 1},
};

// dq = serialized: tiles of keys, the rows of a turn, and where they were measured to be faster
// than a separate kernel: the head dim, and how many thread blocks it takes for those of one head,
// which start behind one another, not to be all there is to do. 0: nowhere.
struct SerializedTile {
  KeyTile keys;
  int turn;
  int dim;
  int blocks;
};

constexpr SerializedTile kSerializedTiles[] = {
    {{128, 64, 8, 2, 1}, 128, 128, 512},
    {{128, 32, 4, 1, 2}, 128, 64, 1024},
    {{64, 64, 8, 2, 1}, 128, 256, 1024},
    {{64, 64, 4, 2, 2}, 128, 0, 0},
};

struct QueryTile {
  int block_q, block_k, warps, ctas;
};

constexpr QueryTile kQueryTiles[] = {
    {128, 64, 4, 2}, {128, 32, 4, 2}, {64, 64, 4, 2}, {64, 32, 4, 2},
    {128, 32, 8, 1}, {64, 32, 4, 1},  {32, 32, 2, 1},
};

constexpr QueryTile kWideQueryTiles[] = {
    {64, 32, 4, 2}, {64, 32, 4, 1}, {64, 16, 4, 1}, {32, 16, 2, 1}, {16, 16, 1, 1},
};

template <typename Tile, std::size_t kNarrow, std::size_t kWide>
std::span<const Tile> tiling(const Problem& p, const Tile (&narrow)[kNarrow],
                             const Tile (&wide)[kWide]) {
  if (bytes_of(p.dtype) == 4) return wide;
  return narrow;
}

ForwardConfig with(ForwardConfig c, const ForwardTile& t) {
  c.block_q = t.block_q;
  c.block_k = t.block_k;
  c.warps = t.warps;
  if (c.target != Target::cuda_sm75) c.stages = t.stages;
  c.ctas = t.ctas;
  return c;
}

BackwardConfig with(BackwardConfig c, const KeyTile& keys) {
  c.block_k = keys.block_k;
  c.block_q = keys.block_q;
  c.warps = keys.warps;
  c.sharing = keys.sharing;
  c.ctas = keys.ctas;
  return c;
}

BackwardConfig with(BackwardConfig c, const SerializedTile& tile) {
  c = with(c, tile.keys);
  c.dq = DqAccumulation::serialized;
  c.dq_block_q = tile.turn;
  return c;
}

BackwardConfig with(BackwardConfig c, const KeyTile& keys, const QueryTile& queries) {
  c = with(c, keys);
  c.dq_block_q = queries.block_q;
  c.dq_block_k = queries.block_k;
  c.dq_warps = queries.warps;
  c.dq_ctas = queries.ctas;
  return c;
}

// fp32 operands are twice as wide on their way, and copies of cuda_sm75 pass through registers.
template <typename Config>
int other_registers(const Config& c) {
  constexpr int kOfCopies = 24;
  return kOtherRegisters + 4 * (bytes_of(c.element) - 2) +
         (c.target == Target::cuda_sm75 ? kOfCopies : 0);
}

// The default where both passes can be of bf16 parts: the passes of a problem have to round its
// scores alike, and who plans one may run the other.
template <typename Config>
void add_split(std::vector<Config>& legal, const std::vector<Config>& split, const Problem& p,
               const Limits& limits) {
  const bool first = legal.empty() || fp32x3_fits(p, limits);
  legal.insert(legal.begin() + (first ? 0 : 1), split.begin(), split.end());
}

}  // namespace

Verdict check_strides(const Problem& p) {
  for (const Verdict& verdict : {check_strides("q", p.q()), check_strides("k", p.k()),
                                 check_strides("v", p.v()), check_strides("o", p.o())}) {
    if (!verdict) return verdict;
  }
  return Verdict::yes();
}

Verdict check_smem(int bytes, const Limits& limits) {
  if (bytes <= limits.smem_bytes) return Verdict::yes();
  return Verdict::no("the tiles take " + number(bytes) +
                     " bytes of shared memory but a thread block has " + number(limits.smem_bytes));
}

Verdict check_varlen(bool varlen, const Problem& p) {
  if (varlen == p.packed()) return Verdict::yes();
  return Verdict::no(varlen ? "varlen=true is of packed sequences; this problem is dense"
                            : "packed sequences take varlen=true");
}

Verdict check_plain_logits(const Problem& p) {
  if (p.plain_logits()) return Verdict::yes();
  return Verdict::no("cuda_sm90 takes plain logits alone, without softcap, alibi and sink");
}

Verdict check_lengths(const Problem& p) {
  if (p.packed() && std::max(p.total_q, p.total_k) > kMaxLength) {
    return Verdict::no("the sequences' rows " + number(p.total_q) + " and " + number(p.total_k) +
                       " pass " + number(kMaxLength));
  }
  if (p.sq > kMaxLength || p.sk > kMaxLength) {
    return Verdict::no("lengths sq=" + number(p.sq) + ", sk=" + number(p.sk) + " pass " +
                       number(kMaxLength));
  }
  constexpr std::int64_t kLeastRows = 16;  // a thread block has one warp of 16 rows at least
  const std::int64_t rows = p.packed() ? std::max(p.total_q, p.total_k) : std::max(p.sq, p.sk);
  const std::int64_t tiles = (rows + kLeastRows - 1) / kLeastRows + (p.packed() ? 8 * p.b : 0);
  const std::int64_t heads = p.packed() ? p.hq : p.b * p.hq;
  if (p.b > kMaxGrid / p.hq || heads > kMaxGrid / tiles) {
    return Verdict::no("b * hq * length makes more thread blocks than a grid holds");
  }
  return yes();
}

int expected_registers(const ForwardConfig& c) {
  const int q = c.q_in_registers() ? c.head_dim / 2 : 0;
  return c.warp_rows() * (q + c.value_dim + c.block_k) / 32 + other_registers(c);
}

int expected_registers(const BackwardConfig& c) {
  const int of_scores = c.softcap ? 3 : 2;  // p, dp and what softcap leaves of ds
  const int columns = c.head_dim + c.value_dim + of_scores * c.block_q;  // dk, dv first
  // A share of dq follows p and dp; about half of it comes on top.
  const int share = c.dq_serialized() ? c.block_q * c.head_dim / c.threads() : 0;
  return c.warp_rows() * columns / c.sharing / 32 + share / 2 + other_registers(c);
}

int expected_dq_registers(const BackwardConfig& c) {
  const int of_scores = c.softcap ? 3 : 2;
  return c.dq_warp_rows() * (c.head_dim + of_scores * c.dq_block_k) / 32 + other_registers(c);
}

Verdict check_gpu(const ForwardConfig& config, const Problem& problem, const Limits& limits) {
  const Verdict fits = check_problem(config, problem);
  if (!fits) return fits;
  const Verdict warps = check_warps(config.warps);
  return warps ? check_tiles(tiles_of(config), limits) : warps;
}

Verdict check_gpu(const BackwardConfig& config, const Problem& problem, const Limits& limits) {
  const Verdict fits = check_problem(config, problem);
  if (!fits) return fits;
  for (const Verdict& verdict : {check_warps(config.warps), check_warps(config.dq_warps),
                                 check_sharing(config), check_serialized(config)}) {
    if (!verdict) return verdict;
  }
  const Verdict keys = check_tiles(key_tiles_of(config), limits);
  return keys && config.dq == DqAccumulation::separate ? check_tiles(query_tiles_of(config), limits)
                                                       : keys;
}

template <>
std::vector<ForwardConfig> gpu_candidates(const Problem& asked, const Limits& limits) {
  const Problem problem = with_pack_gqa(asked);
  std::vector<ForwardConfig> legal = sm90_candidates(problem, limits);
  for (const ForwardTile& tile : tiling(problem, kForwardTiles, kWideForwardTiles)) {
    const ForwardConfig config = with(dims_of<ForwardConfig>(problem, limits), tile);
    const bool new_one = std::find(legal.begin(), legal.end(), config) == legal.end();
    if (new_one && check_gpu(config, problem, limits)) legal.push_back(config);
  }
  if (problem.dtype == DType::fp32 && problem.d == 64 && problem.dv == 64) {
    // Measured at this head dim: two small blocks of a multiprocessor are 1.47 times one large.
    std::stable_partition(legal.begin(), legal.end(),
                          [](const ForwardConfig& c) { return c.block_q == 128 && c.ctas == 2; });
  }
  add_split(legal, fp32x3_candidates(problem, limits), problem, limits);
  return legal;
}

namespace {

bool serialized_pays(const SerializedTile& tile, const BackwardConfig& c, const Problem& p) {
  const std::int64_t blocks = p.b * p.hk * ((p.sk + c.block_k - 1) / c.block_k);
  return c.head_dim == tile.dim && c.value_dim == tile.dim && blocks >= tile.blocks;
}

}  // namespace

template <>
std::vector<BackwardConfig> gpu_candidates(const Problem& problem, const Limits& limits) {
  const BackwardConfig base = dims_of<BackwardConfig>(problem, limits);
  std::vector<BackwardConfig> legal = sm90_backward_candidates(problem, limits), later;
  for (const SerializedTile& tile : kSerializedTiles) {
    const BackwardConfig config = with(base, tile);
    if (!check_gpu(config, problem, limits)) continue;
    (serialized_pays(tile, config, problem) ? legal : later).push_back(config);
  }
  for (const QueryTile& queries : tiling(problem, kQueryTiles, kWideQueryTiles)) {
    for (const KeyTile& keys : tiling(problem, kKeyTiles, kWideKeyTiles)) {
      const BackwardConfig config = with(base, keys, queries);
      if (check_gpu(config, problem, limits)) legal.push_back(config);
    }
  }
  legal.insert(legal.end(), later.begin(), later.end());
  add_split(legal, fp32x3_backward_candidates(problem, limits), problem, limits);
  return legal;
}

ForwardConfig default_gpu_forward(const Problem& problem, const Limits& limits) {
  const std::vector<ForwardConfig> legal = gpu_candidates<ForwardConfig>(problem, limits);
  return legal.empty() ? with(dims_of<ForwardConfig>(problem, limits), kForwardTiles[0]) : legal[0];
}

BackwardConfig default_gpu_backward(const Problem& problem, const Limits& limits) {
  const std::vector<BackwardConfig> legal = gpu_candidates<BackwardConfig>(problem, limits);
  return legal.empty()
             ? with(dims_of<BackwardConfig>(problem, limits), kKeyTiles[0], kQueryTiles[0])
             : legal[0];
}

Limits gpu_limits(int architecture) {
  constexpr int kKiB = 1024;
  if (architecture < 80) {  // blocks cost nothing beside what they ask for
    return {.highest = Target::cuda_sm75,
            .smem_bytes = 64 * kKiB,
            .multiprocessor_smem_bytes = 64 * kKiB};
  }
  const int multiprocessor = architecture == 86 || architecture == 89   ? 100 * kKiB
                             : architecture >= 90 && architecture < 120 ? 228 * kKiB
                             : architecture >= 120                      ? 100 * kKiB
                                                                        : 164 * kKiB;
  return {.highest = architecture == 90 ? Target::cuda_sm90 : Target::cuda_sm80,
          .smem_bytes = multiprocessor - kBlockSmemBytes,
          .multiprocessor_smem_bytes = multiprocessor};
}

}  // namespace dfa
