#pragma once

// The kernels that cut keys into splits on the device, on a processor.
#include "emulated/hopper.h"
#include "emulated/split_pieces.h"
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
  const int most = most_splits(args.splits, args.args.packed.tile_counts[0]);
  launch(launches[1].grid, launches[1].threads, [&] { sm80_split_kv<kConfig>(args); });
  return most;
}

template <ForwardConfig kConfig>
void expect_split_kv(const std::string& line, int num_splits, int split_keys) {
  Tensors t(line, 7);
  run_split_kv<kConfig>(t, t.forward_args(), num_splits, split_keys);
  expect_met(check_forward(t.p, t.forward_args()), line);
}

// Calls for groups of a power of two and of three, without type and head dim: lengths of none, one,
// a page and a row more or less, about those of tiles; queries up to more than a tile's.
inline constexpr const char* kSplitsOfTwo[] = {
    "causal hq4 hk2 lens(7,1,0,16,5,3) lens_k(450,1,9,16,17,15) page(16)",
    "hq4 hk2 lens(1,1,1) lens_k(64,3,500) page(64)",
    "window(40,9) hq2 hk1 lens(20,1,9) lens_k(331,0,64) page(7)",
    "causal b3 hq4 hk2 sq2 sk290 page(1)",
};
inline constexpr const char* kSplitsOfThree[] = {
    "causal hq6 hk2 lens(5,1,0,3) lens_k(450,1,9,66) page(16)",
    "b2 hq3 hk1 sq1 sk700 page(256)",
};

}  // namespace dfa::emulated
