#include "kernels/launch_parts.h"
#include "kernels/schedule/split_sequence_tiles.h"
#include "plan/steps.h"
#include "spec/config_text.h"

// Decode, whose keys are cut into splits on the device: of cuda_sm80, and of cuda_sm90 with heads
// above 256 columns.
namespace dfa {

using namespace launch_parts;

namespace {

std::int64_t heads_of(const Problem& p, const ForwardConfig& c) { return p.hq / c.pack_gqa; }

std::int64_t most_works(const Problem& p, const ForwardConfig& c) {
  if (!p.packed()) return p.b * tiles_of(p.sq, q_list_rows(c));
  return most_tiles(p, p.total_q, q_list_rows(c));
}

// Tiles of keys of a split where splits have sizes of their own, 0 where lengths give them.
int split_tiles(const Problem& p, const ForwardConfig& c) {
  return p.num_splits == 1 ? kWholeSplit : c.split_keys / c.block_k;
}

// Bounds hold whatever sq and sk a packed problem has, which callers may know wrongly.
std::int64_t most_parts(const Problem& p, const ForwardConfig& c) {
  if (split_tiles(p, c) == 0) return 2 * c.num_splits;
  if (split_tiles(p, c) == kWholeSplit) return most_works(p, c);
  const std::int64_t keys = p.packed() && !p.paged() ? p.total_k : p.sk;
  return most_works(p, c) * std::min<std::int64_t>(tiles_of(keys, c.split_keys), kMostFixedSplits);
}

// Thread blocks of a head.
std::int64_t blocks_of(const Problem& p, const ForwardConfig& c) {
  if (split_tiles(p, c) == 0) return c.num_splits;
  return std::min<std::int64_t>(most_parts(p, c), c.num_splits);
}

// Where things lie in the workspace, in bytes.
struct Places {
  std::size_t first, pieces, ended, o, lse, end;

  Places(const SplitKvArgs& s, int d_v) {
    const auto blocks = static_cast<std::size_t>(s.blocks),
               works = static_cast<std::size_t>(s.most_works),
               heads = static_cast<std::size_t>(s.heads);
    const auto parts = static_cast<std::size_t>(s.most_parts);
    const std::size_t rows = parts * heads * static_cast<std::size_t>(s.rows);
    first = kTileCountBytes;
    pieces = first + aligned(sizeof(SplitPiece) * blocks);
    ended = pieces + sizeof(SplitPiece) * (works + parts);
    o = ended + aligned(sizeof(unsigned) * works * heads);
    lse = o + sizeof(float) * rows * static_cast<std::size_t>(d_v);
    end = lse + sizeof(float) * rows;
  }
};

SplitKvArgs sizes_of(const Problem& p, const ForwardConfig& c) {
  SplitKvArgs s{};
  s.heads = static_cast<int>(heads_of(p, c));
  s.key_tile = c.block_k;
  s.blocks = static_cast<int>(blocks_of(p, c));
  s.split_tiles = split_tiles(p, c);
  s.most_splits = p.num_splits > 1 ? p.num_splits : 0;
  s.most_works = static_cast<int>(most_works(p, c));
  s.most_parts = static_cast<int>(most_parts(p, c));
  s.rows = c.block_q;
  return s;
}

// The kernel is the same whatever these are.
ForwardConfig of_kernel(ForwardConfig c) {
  c.num_splits = c.split_keys = 0;
  return c;
}

KernelLaunch lists_launch(const Problem& p, const ForwardConfig& c) {
  return {.name = "tiles",
          .source = "kernels/schedule/split_sequence_tiles.cuh",
          .entry = std::string("dfa::split_sequence_tiles<") + (c.varlen ? "true" : "false") +
                   (c.paged ? ", true>" : ", false>"),
          .grid = grid(kListBlocks + (c.varlen ? (p.b + 1) * gap_slices(p) : 0)),
          .threads = kSequenceThreads,
          .smem_bytes = kSplitSmemBytes};
}

}  // namespace

namespace launch_parts {

std::vector<KernelLaunch> split_kv_launches(const Problem& p, const ForwardConfig& c) {
  std::vector<KernelLaunch> launches{lists_launch(p, c)};
  const std::string config = qualified(to_text(of_kernel(c))) + ">";
  const bool sm90 = c.target == Target::cuda_sm90;
  launches.push_back(
      {.name = "forward",
       .source = sm90 ? "kernels/forward/sm90_sliced_split_forward.cuh"
                      : "kernels/forward/sm80_split_kv.cuh",
       .entry = (sm90 ? "dfa::sm90_sliced_split_forward<" : "dfa::sm80_split_kv<") + config,
       .grid = grid(blocks_of(p, c) * heads_of(p, c)),
       .threads = count(c.threads()),
       .smem_bytes = count(c.smem_bytes())});
  if (sm90) {
    constexpr int kRowsOfBlock = 4;  // a warp for a row
    launches.push_back({.name = "join",
                        .source = "kernels/forward/combine_listed_splits.cuh",
                        .entry = "dfa::combine_listed_splits<" + config,
                        .grid = grid(most_works(p, c) * heads_of(p, c) * c.block_q / kRowsOfBlock),
                        .threads = 32 * kRowsOfBlock});
  }
  return launches;
}

std::size_t split_kv_bytes(const Problem& p, const ForwardConfig& c) {
  return Places(sizes_of(p, c), static_cast<int>(p.dv)).end;
}

}  // namespace launch_parts

SplitKvForwardArgs split_kv_args(const Problem& p, const ForwardConfig& c) {
  SplitKvForwardArgs all{
      .args = kernel_args(p, c), .splits = sizes_of(p, c), .k_descale = {}, .v_descale = {}};
  all.args.packed.q_tile_rows = q_list_rows(c);
  return all;
}

SplitKvForwardArgs with_pointers(SplitKvForwardArgs all, const ForwardArgs& pointers) {
  all.args = with_pointers(all.args, pointers);
  const Places at(all.splits, all.args.d_v);
  auto* const begin = static_cast<char*>(pointers.workspace);
  all.args.packed.tile_counts = reinterpret_cast<int*>(begin);
  all.splits.first = reinterpret_cast<SplitPiece*>(begin + at.first);
  all.splits.pieces = reinterpret_cast<SplitPiece*>(begin + at.pieces);
  all.splits.ended = reinterpret_cast<unsigned*>(begin + at.ended);
  all.splits.o = reinterpret_cast<float*>(begin + at.o);
  all.splits.lse = reinterpret_cast<float*>(begin + at.lse);
  const auto factors_of = [](const Descale& d) { return DescaleArgs{d.values, d.batch, d.head}; };
  all.k_descale = factors_of(pointers.descales.k);
  all.v_descale = factors_of(pointers.descales.v);
  return all;
}

}  // namespace dfa
