#include "kernels/launch_parts.h"
#include "kernels/schedule/sequence_tiles.h"
#include "plan/steps.h"
#include "spec/config_text.h"

// Decode of packed sequences, whose keys are cut into splits on the device.
namespace dfa {

using namespace launch_parts;

namespace {

constexpr std::int64_t kRounds = 3;  // as in split_tiles_of (schedule/split_sequence_tiles.cuh)

std::int64_t heads_of(const Problem& p, const ForwardConfig& c) { return p.hq / c.pack_gqa; }

std::size_t list_bytes(const Problem& p, const ForwardConfig& c) {
  return aligned(kTileCountBytes +
                 sizeof(SequenceTile) * static_cast<std::size_t>(most_splits(p, c)));
}

// Of all splits of all heads.
std::size_t parts(const Problem& p, const ForwardConfig& c) {
  return static_cast<std::size_t>(most_splits(p, c) * heads_of(p, c));
}
std::size_t ended_bytes(const Problem& p, const ForwardConfig& c) {
  return aligned(sizeof(unsigned) * parts(p, c));
}
std::size_t output_floats(const Problem& p, const ForwardConfig& c) {
  return parts(p, c) * static_cast<std::size_t>(c.block_q * p.dv);
}

// The kernel is the same whatever these are.
ForwardConfig of_kernel(ForwardConfig c) {
  c.num_splits = c.split_keys = 0;
  return c;
}

}  // namespace

namespace launch_parts {

std::int64_t most_splits(const Problem& p, const ForwardConfig& c) {
  const std::int64_t tiles = most_tiles(p, p.total_q, q_list_rows(c));
  if (c.split_keys > 0) return tiles * std::max<std::int64_t>(1, tiles_of(p.sk, c.split_keys));
  return tiles + kRounds * c.num_splits / heads_of(p, c) + 1;
}

std::vector<KernelLaunch> split_kv_launches(const Problem& p, const ForwardConfig& c) {
  return {{.name = "tiles",
           .source = "kernels/schedule/split_sequence_tiles.cuh",
           .entry = std::string("dfa::split_sequence_tiles<") + (p.paged() ? "true>" : "false>"),
           .grid = grid(kListBlocks + (p.b + 1) * gap_slices(p)),
           .threads = kSequenceThreads,
           .smem_bytes = kSequenceSmemBytes},
          {.name = "forward",
           .source = "kernels/forward/sm80_split_kv.cuh",
           .entry = "dfa::sm80_split_kv<" + qualified(to_text(of_kernel(c))) + ">",
           .grid = grid(most_splits(p, c) * heads_of(p, c)),
           .threads = count(c.threads()),
           .smem_bytes = count(c.smem_bytes())}};
}

std::size_t split_kv_bytes(const Problem& p, const ForwardConfig& c) {
  const std::size_t rows = parts(p, c) * static_cast<std::size_t>(c.block_q);
  return list_bytes(p, c) + ended_bytes(p, c) + sizeof(float) * (output_floats(p, c) + rows);
}

}  // namespace launch_parts

SplitKvForwardArgs split_kv_args(const Problem& p, const ForwardConfig& c) {
  SplitKvForwardArgs all{.args = kernel_args(p, c), .splits = {}};
  all.args.packed.most_q_tiles = static_cast<int>(most_splits(p, c));
  all.splits.heads = static_cast<int>(heads_of(p, c));
  all.splits.key_tile = c.block_k;
  all.splits.blocks = c.num_splits;
  all.splits.split_tiles = c.split_keys / c.block_k;
  all.splits.most_splits = all.args.packed.most_q_tiles;
  all.splits.rows = c.block_q;
  return all;
}

SplitKvForwardArgs with_pointers(SplitKvForwardArgs all, const ForwardArgs& pointers) {
  all.args = with_pointers(all.args, pointers);
  const std::size_t parts = static_cast<std::size_t>(all.splits.most_splits * all.splits.heads);
  auto* at = reinterpret_cast<char*>(all.args.packed.tile_counts);
  at += aligned(kTileCountBytes +
                sizeof(SequenceTile) * static_cast<std::size_t>(all.splits.most_splits));
  all.splits.ended = reinterpret_cast<unsigned*>(at);
  at += aligned(sizeof(unsigned) * parts);
  all.splits.o = reinterpret_cast<float*>(at);
  all.splits.lse = all.splits.o + parts * static_cast<std::size_t>(all.splits.rows * all.args.d_v);
  return all;
}

}  // namespace dfa
