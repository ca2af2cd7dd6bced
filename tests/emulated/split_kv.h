#pragma once

// The kernels that cut keys into splits on the device, on a processor.
#include "emulated/hopper.h"
#include "plan/pack_gqa.h"
#include "plan/select.h"
#include "plan/select_split_kv.h"
#include "spec/limits.h"
// and then:
#include "kernels/forward/sm80_split_kv.cuh"
#include "kernels/schedule/split_sequence_tiles.cuh"

namespace dfa::emulated {

struct SplitShape {
  int block_q, block_k, warps, stages, pack_gqa;
};

enum class Keys { dense, packed, paged };

constexpr ForwardConfig split_forward(DType element, int dim, SplitShape s, Keys keys,
                                      bool logits = false) {
  return {.target = Target::cuda_sm80,
          .element = element,
          .head_dim = dim,
          .value_dim = dim,
          .block_q = s.block_q,
          .block_k = s.block_k,
          .warps = s.warps,
          .stages = s.stages,
          .ctas = 1,
          .pack_gqa = s.pack_gqa,
          .varlen = keys != Keys::dense,
          .softcap = logits,
          .sink = logits,
          .paged = keys == Keys::paged,
          .split_kv = true};
}

// The most splits that a tile of queries had.
template <ForwardConfig kConfig>
int run_split_kv(Tensors& t, ForwardArgs pointers, int num_splits, int split_keys) {
  const Problem p = with_pack_gqa(t.p);
  ForwardConfig config = kConfig;
  config.num_splits = num_splits;
  config.split_keys = split_keys;
  expect_legal(config, t.p);
  const auto launches = forward_launches(p, config);
  Workspace workspace(forward_workspace_bytes(p, config));
  pointers.workspace = workspace.data();
  const SplitKvForwardArgs args = with_pointers(split_kv_args(p, config), pointers);
  launch(launches[0].grid, launches[0].threads,
         [&] { split_sequence_tiles<kConfig.varlen, kConfig.paged>(args); });
  int most = 0;
  for (int block = 0; block < args.args.packed.tile_counts[0]; ++block) {
    const SplitPiece* piece = args.splits.first + block;
    for (;; piece = args.splits.pieces + piece->next) {
      most = std::max(most, piece->tile.splits);
      EXPECT_LT(piece->part(piece->tile.splits - 1), args.splits.most_parts);
      if (piece->is_last) break;
    }
  }
  launch(launches[1].grid, launches[1].threads, [&] { sm80_split_kv<kConfig>(args); });
  return most;
}

}  // namespace dfa::emulated
