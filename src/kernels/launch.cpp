#include "kernels/launch.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "kernels/check/args.h"
#include "kernels/launch_parts.h"
#include "kernels/schedule/sequence_tiles.h"
#include "plan/schedule.h"
#include "plan/select_backward.h"
#include "spec/bias.h"
#include "spec/config_text.h"
#include "spec/e4m3.h"
#include "spec/expression_source.h"
#include "spec/fp32x3.h"

namespace dfa {
namespace {

using namespace launch_parts;

constexpr int kDeltaThreads = 128;                  // backward/delta.cuh
constexpr int kSinkThreads = 256;                   // backward/sink_gradient.cuh
constexpr int kJoinThreads = 128;                   // a warp for a row
constexpr int kDeltaRows = kDeltaThreads / 32 * 4;  // a quarter of a warp for a row
constexpr const char* kSm75Source = "kernels/sm75.cuh";
constexpr const char* kForwardSource = "kernels/forward/sm80_forward.cuh";
constexpr const char* kSm90ForwardSource = "kernels/forward/sm90_forward.cuh";
constexpr const char* kSm90PagedForwardSource = "kernels/forward/sm90_paged_forward.cuh";
constexpr const char* kSm90SlicedForwardSource = "kernels/forward/sm90_sliced_forward.cuh";
constexpr const char* kSm90BlocksForwardSource = "kernels/forward/sm90_blocks_forward.cuh";
constexpr const char* kBackwardSource = "kernels/backward/sm80_backward.cuh";
constexpr const char* kSm90BackwardSource = "kernels/backward/sm90_backward.cuh";
constexpr const char* kSm90PairSource = "kernels/backward/sm90_pair_backward.cuh";
constexpr const char* kSm90BlocksBackwardSource = "kernels/backward/sm90_blocks_backward.cuh";
constexpr const char* kSm90WideSource = "kernels/backward/sm90_wide_backward.cuh";
constexpr const char* kSm90SlicedSource = "kernels/backward/sm90_sliced_backward.cuh";
constexpr const char* kDeltaSource = "kernels/backward/delta.cuh";
constexpr const char* kSlicedForwardSource = "kernels/forward/sm80_sliced_forward.cuh";
constexpr const char* kSlicedKeysSource = "kernels/backward/sm80_sliced_keys.cuh";
constexpr const char* kSlicedQueriesSource = "kernels/backward/sm80_sliced_queries.cuh";
constexpr const char* kBiasSource = "kernels/backward/sm80_bias_gradient.cuh";
constexpr const char* kSinkSource = "kernels/backward/sink_gradient.cuh";

// Counters of tiles, then the lists; ahead of all else in the workspace.
template <typename Config>
std::size_t list_bytes(const Problem& p, const Config& c) {
  if (!p.packed()) return 0;
  std::int64_t tiles = most_tiles(p, p.total_q, q_list_rows(c));
  if (k_list_rows(c) > 0) tiles += most_tiles(p, p.total_k, k_list_rows(c));
  return aligned(kTileCountBytes + sizeof(SequenceTile) * static_cast<std::size_t>(tiles));
}

KernelLaunch tiles_launch(const Problem& p) {
  return {.name = "tiles",
          .source = p.paged() ? "kernels/schedule/paged_sequence_tiles.cuh"
                              : "kernels/schedule/sequence_tiles.cuh",
          .entry = p.paged() ? "dfa::paged_sequence_tiles" : "dfa::sequence_tiles",
          .grid = grid(kListBlocks + (p.b + 1) * gap_slices(p)),
          .threads = kSequenceThreads,
          .smem_bytes = kSequenceSmemBytes};
}

// Thread blocks of a kernel that owns so many rows of q.
template <typename Config>
unsigned q_grid(const Problem& p, const Config& c, int rows) {
  if (!p.packed()) return grid(tiles_of(p.sq, rows) * p.b * p.hq);
  const int listed = q_list_rows(c);
  return grid(most_tiles(p, p.total_q, listed) * (listed / rows) * p.hq);
}

std::string source(Target target, const char* usual) {
  return target == Target::cuda_sm75 ? kSm75Source : usual;
}

// What kernels that make logits ask for.
template <typename Config>
std::string preamble_of(const Problem& p, const Config& c) {
  return c.text ? user_text_source(p) : "";
}

bool is_sm90(const BackwardConfig& c) { return c.target == Target::cuda_sm90; }

std::string backward_source(const BackwardConfig& c) {
  if (!is_sm90(c)) return source(c.target, kBackwardSource);
  if (c.blocks) return kSm90BlocksBackwardSource;
  if (c.sm90_is_wide()) return kSm90WideSource;
  return c.cluster > 1 ? kSm90PairSource : kSm90BackwardSource;
}

const char* keys_kernel(const BackwardConfig& c) {
  if (!is_sm90(c)) return "dfa::sm80_backward_keys<";
  if (c.blocks) return "dfa::sm90_blocks_backward<";
  if (c.sm90_is_wide()) return "dfa::sm90_wide_backward<";
  return c.cluster > 1 ? "dfa::sm90_pair_backward<" : "dfa::sm90_backward<";
}

KernelLaunch keys_launch(const Problem& p, const BackwardConfig& c) {
  const std::int64_t clusters = c.varlen       ? most_tiles(p, p.total_k, c.cluster_keys()) * p.hk
                                : c.dq_fused() ? rounding_order(p, c).clusters()
                                               : work_tiles_of(p, c);
  return {.name = "dk dv",
          .source = backward_source(c),
          .entry = keys_kernel(c) + qualified(to_text(c)) + ">",
          .grid = c.persistent ? persistent_grid(p, c, static_cast<int>(work_tiles_of(p, c)))
                               : grid(clusters * c.cluster),
          .threads = count(c.threads()),
          .smem_bytes = count(c.smem_bytes()),
          .cluster = count(c.cluster),
          .preamble = preamble_of(p, c)};
}

// Heads in slices: a thread block for each of a sum's.
KernelLaunch sliced_keys_launch(const Problem& p, const BackwardConfig& c, bool of_values) {
  const std::int64_t tiles =
      c.varlen ? most_tiles(p, p.total_k, c.block_k) * p.hk : work_tiles_of(p, c);
  return {.name = of_values ? "dv" : "dk",
          .source = kSlicedKeysSource,
          .entry =
              "dfa::sm80_sliced_keys<" + qualified(to_text(c)) + (of_values ? ",true>" : ",false>"),
          .grid = grid(tiles * c.sum_slices(of_values)),
          .threads = count(c.threads()),
          .smem_bytes = count(of_values ? c.sliced_dv_smem_bytes() : c.smem_bytes()),
          .preamble = preamble_of(p, c)};
}

// The same of cuda_sm90: a thread block for 64 rows.
KernelLaunch sm90_sliced_launch(const Problem& p, const BackwardConfig& c, const char* gradient) {
  const bool of_queries = std::string_view("dq") == gradient;
  const bool of_values = std::string_view("dv") == gradient;
  const std::int64_t tiles =
      c.varlen ? most_tiles(p, p.total_k, c.block_k) : tiles_of(p.sk, c.block_k) * p.b;
  return {.name = gradient,
          .source = kSm90SlicedSource,
          .entry = "dfa::sm90_sliced_backward<" + qualified(to_text(c)) +
                   ",dfa::SlicedGradient::" + gradient + ">",
          .grid = of_queries ? q_grid(p, c, kGroupRows) : grid(tiles * p.hk),
          .threads = count(c.threads()),
          .smem_bytes = count(c.sm90_sliced_smem_bytes(of_values))};
}

KernelLaunch queries_launch(const Problem& p, const BackwardConfig& c) {
  const unsigned tiles = q_grid(p, c, c.dq_block_q);
  return {.name = "dq",
          .source = c.sliced() ? kSlicedQueriesSource : source(c.target, kBackwardSource),
          .entry = (c.sliced() ? "dfa::sm80_sliced_queries<" : "dfa::sm80_backward_queries<") +
                   qualified(to_text(c)) + ">",
          .grid = c.sliced() ? tiles * count(c.sum_slices(false)) : tiles,
          .threads = count(c.dq_threads()),
          .smem_bytes = count(c.dq_smem_bytes()),
          .preamble = preamble_of(p, c)};
}

KernelLaunch sink_launch(const Problem& p, const BackwardConfig& c) {
  return {.name = "dsinks",
          .source = source(c.target, kSinkSource),
          .entry = std::string("dfa::sink_gradient<dfa::DType::") + name_of(c.element) + "," +
                   (c.varlen ? "true>" : "false>"),
          .grid = grid(p.hq),
          .threads = kSinkThreads,
          .smem_bytes = kSinkThreads / 32 * sizeof(float)};
}

// Beside Hopper's own kernels, too, the portable one.
KernelLaunch bias_launch(const Problem& p, const BackwardConfig& of_pass) {
  const BackwardConfig c = is_sm90(of_pass) ? bias_gradient_config(p) : of_pass;
  const BiasSizes sizes = bias_sizes(p);
  return {.name = "dbias",
          .source = source(c.target, kBiasSource),
          .entry = "dfa::sm80_bias_gradient<" + qualified(to_text(c)) + ">",
          .grid = grid(sizes.b * sizes.hq * tiles_of(p.sq, c.dq_block_q) *
                       tiles_of(p.sk, c.dq_block_k)),
          .threads = count(c.dq_threads()),
          .smem_bytes = count(c.dq_smem_bytes()),
          .preamble = preamble_of(p, c)};
}

KernelLaunch rounded_dq_launch(const Problem& p, const BackwardConfig& c) {
  return {.name = "dq",
          .source = backward_source(c),
          .entry = (is_sm90(c) ? "dfa::sm90_dq<" : "dfa::sm80_serialized_dq<") +
                   qualified(to_text(c)) + ">",
          .grid = q_grid(p, c, c.block_q),
          .threads = count(is_sm90(c) ? c.sm90_dq_threads() : 32 * c.warps),
          .smem_bytes = count(bytes_of(c.element) * c.block_q * c.head_dim)};
}

// The workspace: lists of tiles, lse, delta, then where dq is summed the sums and the dq
// semaphores. In bytes.
std::size_t row_bytes(const Problem& p, std::int64_t floats) {
  return sizeof(float) * static_cast<std::size_t>(all_padded_rows(p) * floats);
}
std::size_t sums_at(const Problem& p, const BackwardConfig& c) {
  return list_bytes(p, c) + row_bytes(p, 2);
}
std::size_t dq_semaphores_at(const Problem& p, const BackwardConfig& c) {
  return sums_at(p, c) + row_bytes(p, gpu_head_dim(p.d));
}

ZeroedBytes sums_of(const Problem& p, const BackwardConfig& c) {
  return {.offset = sums_at(p, c), .bytes = dq_semaphores_at(p, c) - sums_at(p, c)};
}

}  // namespace

namespace launch_parts {

std::string qualified(std::string text) {
  for (const std::string name :
       {"ForwardConfig{", "BackwardConfig{", "Target::", "DType::", "DqAccumulation::"}) {
    for (std::size_t at = text.find(name); at != std::string::npos;
         at = text.find(name, at + name.size() + 5)) {
      text.insert(at, "dfa::");
    }
  }
  return text;
}

ZeroedBytes dq_semaphores_of(const Problem& p, const BackwardConfig& c) {
  std::int64_t counters = c.persistent ? 1 : 0;  // of work tiles
  if (c.split_q) counters += kPartCounters;
  if (c.dq == DqAccumulation::atomic_fused) counters += p.b * p.hk * 3;
  if (c.clears_packed()) counters += p.b * p.hk * 2;
  if (c.dq_serialized()) {
    const std::int64_t counted = p.packed() ? padded_rows(p) / c.dq_semaphore_rows()
                                            : tiles_of(p.sq, c.dq_semaphore_rows()) * p.b;
    counters += counted * c.dq_semaphores_of_tile() * p.hq;
  }
  return {.offset = dq_semaphores_at(p, c),
          .bytes = sizeof(unsigned) * static_cast<std::size_t>(counters)};
}

std::int64_t all_work_tiles(const Problem& p, const ForwardConfig& c) {
  if (p.packed()) return most_tiles(p, p.total_q, c.block_q) * p.hq;
  return tiles_of(p.sq, c.work_tile_queries()) * p.b * p.hq / c.pack_gqa;
}

}  // namespace launch_parts

namespace {

std::string sm90_forward_source(const ForwardConfig& c) {
  if (c.sliced()) return kSm90SlicedForwardSource;
  if (c.blocks) return kSm90BlocksForwardSource;
  return c.paged ? kSm90PagedForwardSource : kSm90ForwardSource;
}

std::string forward_source(const ForwardConfig& c) {
  if (c.target == Target::cuda_sm90) return sm90_forward_source(c);
  return c.sliced() ? kSlicedForwardSource : source(c.target, kForwardSource);
}

const char* forward_kernel(const ForwardConfig& c) {
  if (c.target == Target::cuda_sm90) {
    if (c.sliced()) return "dfa::sm90_sliced_forward<";
    if (c.blocks) return "dfa::sm90_blocks_forward<";
    return c.paged ? "dfa::sm90_paged_forward<" : "dfa::sm90_forward<";
  }
  return c.sliced() ? "dfa::sm80_sliced_forward<" : "dfa::sm80_forward<";
}

// Ahead of Hopper's forward over lists of blocks.
bool takes_block_order(const ForwardConfig& c) { return c.blocks && c.target == Target::cuda_sm90; }

KernelLaunch block_order_launch(const Problem& p, const ForwardConfig& c) {
  return {.name = "order",
          .source = "kernels/forward/block_order.cuh",
          .entry = "dfa::block_order",
          .grid = grid(tiles_of(p.b * p.hq, fitting_heads(p, c))),
          .threads = kBlockOrderThreads,
          .smem_bytes = kBlockOrderSmemBytes};
}

std::int64_t forward_clusters(const Problem& p, const ForwardConfig& c) {
  return c.num_splits > 0 ? split_kv(p, c).count() : all_work_tiles(p, c);
}

}  // namespace

std::vector<KernelLaunch> forward_launches(const Problem& p, const ForwardConfig& c) {
  if (is_fp32x3(c)) return fp32x3_forward_launches(p, c);
  if (is_e4m3(c)) {
    std::vector<KernelLaunch> launches = e4m3_forward_launches(p, c);
    if (c.varlen) launches.insert(launches.begin(), tiles_launch(p));
    return launches;
  }
  if (c.split_kv) return split_kv_launches(p, c);
  std::vector<KernelLaunch> launches;
  if (c.varlen) launches.push_back(tiles_launch(p));
  if (takes_block_order(c)) launches.push_back(block_order_launch(p, c));
  launches.push_back({.name = "forward",
                      .source = forward_source(c),
                      .entry = forward_kernel(c) + qualified(to_text(c)) + ">",
                      .grid = grid(forward_clusters(p, c) * c.cluster * c.output_slices()),
                      .threads = count(c.threads()),
                      .smem_bytes = count(c.smem_bytes()),
                      .cluster = count(c.cluster),
                      .preamble = preamble_of(p, c)});
  if (c.num_splits > 0) {
    const int rows = split_kv(p, c).left() * split_partials(p, c).rows;
    launches.push_back({.name = "join",
                        .source = "kernels/forward/combine_splits.cuh",
                        .entry = "dfa::combine_splits<" + qualified(to_text(c)) + ">",
                        .grid = grid(tiles_of(rows, kJoinThreads / 32)),
                        .threads = kJoinThreads});
  }
  return launches;
}

std::vector<KernelLaunch> backward_launches(const Problem& p, const BackwardConfig& c) {
  if (is_fp32x3(c)) return fp32x3_backward_launches(p, c);
  std::vector<KernelLaunch> launches;
  if (c.varlen) launches.push_back(tiles_launch(p));
  launches.push_back(
      {.name = "delta",
       .source = source(c.target, kDeltaSource),
       .entry = std::string("dfa::delta<dfa::DType::") + name_of(c.element) +
                (c.varlen ? ",true>" : ">"),
       .grid = c.varlen ? q_grid(p, c, kDeltaRows) : grid(padded_rows(p) / kDeltaRows * p.b * p.hq),
       .threads = kDeltaThreads});
  if (p.sink) launches.push_back(sink_launch(p, c));
  if (p.bias) launches.push_back(bias_launch(p, c));
  if (c.sliced() && is_sm90(c)) {
    for (const char* gradient : {"dv", "dk", "dq"}) {
      launches.push_back(sm90_sliced_launch(p, c, gradient));
    }
    return launches;
  }
  if (c.sliced()) {
    launches.push_back(sliced_keys_launch(p, c, true));
    launches.push_back(sliced_keys_launch(p, c, false));
  } else {
    launches.push_back(keys_launch(p, c));
  }
  if (c.dq != DqAccumulation::separate) {
    if (c.dq == DqAccumulation::atomic && !c.clears_packed())
      launches.back().zeroed = sums_of(p, c);
    if (c.dq_serialized() && !is_sm90(c)) launches.back().zeroed = dq_semaphores_of(p, c);
    if (!c.dq_fused()) launches.push_back(rounded_dq_launch(p, c));
    return launches;
  }
  launches.push_back(queries_launch(p, c));
  return launches;
}

bool adds_bias_gradient(const Problem& p, const BackwardConfig& c) {
  if (!is_sm90(c) || !p.bias || c.softcap) return false;
  const BiasSizes sizes = bias_sizes(p);
  return !p.deterministic || (sizes.b == p.b && sizes.hq == p.hq);
}

int dq_semaphore_count(const Problem& p, const BackwardConfig& c) {
  if (!is_sm90(c)) return 0;
  return static_cast<int>(dq_semaphores_of(p, c).bytes / sizeof(unsigned));
}

RoundingOrder rounding_order(const Problem& p, const BackwardConfig& c) {
  const std::int64_t heads = p.b * p.hk;
  const std::int64_t at_once = std::min<std::int64_t>(heads, select_head_swizzle(p, c));
  const auto keys = static_cast<int>(at_once * tiles_of(p.sk, c.cluster_keys()));
  const std::int64_t queries = at_once * p.hq / p.hk * tiles_of(p.sq, c.block_q);
  const auto groups = static_cast<int>(tiles_of(heads, static_cast<int>(at_once)));
  const auto behind = static_cast<int>(tiles_of(select_blocks_behind(c), keys * c.cluster));
  const auto joined =
      static_cast<int>(tiles_of(heads - select_tail_heads(p, c), static_cast<int>(at_once)));
  const int small = heads % at_once == 0 ? 0 : 1;  // the last group, with fewer to share
  return {.groups = groups,
          .keys = keys,
          .roundings = static_cast<int>(tiles_of(queries, c.rounded_tiles() * c.cluster)),
          .behind = behind,
          .last = std::min(std::max(behind + small, joined), groups)};
}

unsigned persistent_grid(const Problem& p, const BackwardConfig& c, int persistent_clusters) {
  int clusters = persistent_clusters;
  if (c.dq_fused()) {
    const RoundingOrder order = rounding_order(p, c);
    clusters += order.last * order.roundings;
  }
  return count(clusters * c.cluster);
}

KernelLaunch rows_launch(const Problem& p, int rows) {
  int held = 1;  // columns of a lane: 1, 2, 4 or 8
  while (32 * held < std::max(p.d, p.dv)) held *= 2;
  return {.name = "check rows",
          .source = "kernels/check/rows.cuh",
          .entry = std::string("dfa::check_rows<dfa::DType::") + name_of(p.dtype) + "," +
                   std::to_string(held) + ">",
          .grid = count(rows),
          .threads = kCheckThreads,
          .smem_bytes = count(kCheckWarps * check_part(held) * static_cast<int>(sizeof(float)))};
}

TileGrid forward_tile_grid(const Problem& p, const ForwardConfig& c, int blocks) {
  constexpr int kFewTiles = 8;
  if (c.num_splits > 0) {  // in one row, pieces behind whole work tiles
    return {.heads = 1, .tiles = split_kv(p, c).count(), .section = 1, .late_first = 0};
  }
  const std::int64_t heads = p.b * p.hq / c.pack_gqa;
  const int fitting = fitting_heads(p, c);
  const auto of_head = static_cast<int>(tiles_of(p.sq, c.work_tile_queries()));
  blocks /= c.cluster;
  // The fewest heads whose tiles fill whole rounds. Short ones are dealt out so: work tiles of
  // every length run beside each other, where those of a larger section that see all of k and v
  // came together and waited for memory (0015).
  const int whole = blocks / std::gcd(of_head, blocks);
  const bool in_rounds =
      of_head <= kFewTiles && of_head % 2 == 0 && whole * of_head <= 2 * blocks && whole <= fitting;
  const bool late_first = p.mask.right >= 0 && p.mask.left < 0;
  const int section = in_rounds ? whole : fitting;
  return {.heads = static_cast<int>(heads),
          .tiles = of_head,
          .section = late_first ? section : static_cast<int>(heads),
          .late_first = late_first};
}

std::size_t forward_workspace_bytes(const Problem& p, const ForwardConfig& c) {
  if (is_fp32x3(c)) return fp32x3_forward_bytes(p);
  if (is_e4m3(c)) return value_tiles_at(p, c) + e4m3_forward_bytes(p, c);
  if (c.split_kv) return split_kv_bytes(p, c);
  if (c.varlen) return list_bytes(p, c);
  if (takes_block_order(c)) {
    return kTileCountBytes + sizeof(int) * static_cast<std::size_t>(all_work_tiles(p, c));
  }
  if (c.num_splits == 0) return 0;
  const SplitPartials partials = split_partials(p, c);
  return sizeof(float) * static_cast<std::size_t>(partials.output_floats + partials.lse_floats);
}

std::size_t value_tiles_at(const Problem& p, const ForwardConfig& c) { return list_bytes(p, c); }

SplitKv split_kv(const Problem& p, const ForwardConfig& c) {
  return {static_cast<int>(all_work_tiles(p, c)), c.num_splits};
}

SplitPartials split_partials(const Problem& p, const ForwardConfig& c) {
  // Of a work tile that holds a whole head no more than that has.
  const auto rows = std::min<std::int64_t>(c.work_tile_rows(), p.sq * c.query_rows());
  const std::int64_t all = split_kv(p, c).pieces() * rows;
  return {.of_head = static_cast<int>(tiles_of(p.sq, c.work_tile_queries())),
          .rows = static_cast<int>(rows),
          .output_floats = all * p.dv,
          .lse_floats = all};
}

std::size_t backward_workspace_bytes(const Problem& p, const BackwardConfig& c) {
  if (is_fp32x3(c)) return fp32x3_backward_bytes(p, c);
  if (c.dq == DqAccumulation::separate) return sums_at(p, c);
  const ZeroedBytes last = dq_semaphores_of(p, c);
  const std::size_t end = last.offset + last.bytes;
  if (!c.split_q) return end;
  const std::int64_t of_work_tile = c.cluster_keys() * (c.head_dim + c.value_dim);
  return aligned(end) + sizeof(float) * kPartPlaces * static_cast<std::size_t>(of_work_tile);
}

}  // namespace dfa
