#include "kernels/launch_parts.h"
#include "kernels/schedule/split_sequence_tiles.h"
#include "plan/steps.h"
#include "spec/config_text.h"

// Decode of packed sequences, whose keys are cut into splits on the device.
namespace dfa {

using namespace launch_parts;

namespace {

std::int64_t heads_of(const Problem& p, const ForwardConfig& c) { return p.hq / c.pack_gqa; }

std::int64_t most_works(const Problem& p, const ForwardConfig& c) {
  return most_tiles(p, p.total_q, q_list_rows(c));
}

// Thread blocks of a head.
std::int64_t blocks_of(const Problem& p, const ForwardConfig& c) {
  if (c.split_keys == 0) return c.num_splits;
  return most_works(p, c) * std::max<std::int64_t>(1, tiles_of(p.sk, c.split_keys));
}

// Where things lie in the workspace, in bytes.
struct Places {
  std::size_t first, pieces, ended, o, lse, end;

  Places(const SplitKvArgs& s, int d_v) {
    const auto blocks = static_cast<std::size_t>(s.blocks),
               works = static_cast<std::size_t>(s.most_works),
               heads = static_cast<std::size_t>(s.heads);
    const std::size_t rows = 2 * blocks * heads * static_cast<std::size_t>(s.rows);
    first = kTileCountBytes;
    pieces = first + aligned(sizeof(SplitPiece) * blocks);
    ended = pieces + sizeof(SplitPiece) * (works + blocks);
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
  s.split_tiles = c.split_keys / c.block_k;
  s.most_works = static_cast<int>(most_works(p, c));
  s.rows = c.block_q;
  return s;
}

// The kernel is the same whatever these are.
ForwardConfig of_kernel(ForwardConfig c) {
  c.num_splits = c.split_keys = 0;
  return c;
}

}  // namespace

namespace launch_parts {

std::vector<KernelLaunch> split_kv_launches(const Problem& p, const ForwardConfig& c) {
  return {{.name = "tiles",
           .source = "kernels/schedule/split_sequence_tiles.cuh",
           .entry = std::string("dfa::split_sequence_tiles<") + (p.paged() ? "true>" : "false>"),
           .grid = grid(kListBlocks + (p.b + 1) * gap_slices(p)),
           .threads = kSequenceThreads,
           .smem_bytes = kSplitSmemBytes},
          {.name = "forward",
           .source = "kernels/forward/sm80_split_kv.cuh",
           .entry = "dfa::sm80_split_kv<" + qualified(to_text(of_kernel(c))) + ">",
           .grid = grid(blocks_of(p, c) * heads_of(p, c)),
           .threads = count(c.threads()),
           .smem_bytes = count(c.smem_bytes())}};
}

std::size_t split_kv_bytes(const Problem& p, const ForwardConfig& c) {
  return Places(sizes_of(p, c), static_cast<int>(p.dv)).end;
}

}  // namespace launch_parts

SplitKvForwardArgs split_kv_args(const Problem& p, const ForwardConfig& c) {
  return {.args = kernel_args(p, c), .splits = sizes_of(p, c)};
}

SplitKvForwardArgs with_pointers(SplitKvForwardArgs all, const ForwardArgs& pointers) {
  all.args = with_pointers(all.args, pointers);
  const Places at(all.splits, all.args.d_v);
  auto* const begin = static_cast<char*>(pointers.workspace);
  all.splits.first = reinterpret_cast<SplitPiece*>(begin + at.first);
  all.splits.pieces = reinterpret_cast<SplitPiece*>(begin + at.pieces);
  all.splits.ended = reinterpret_cast<unsigned*>(begin + at.ended);
  all.splits.o = reinterpret_cast<float*>(begin + at.o);
  all.splits.lse = reinterpret_cast<float*>(begin + at.lse);
  return all;
}

}  // namespace dfa
