#pragma once

#include "kernels/args.h"
#include "kernels/schedule/seqlen_info.h"
#include "kernels/schedule/tile_scheduler.h"
#include "kernels/tensor_map.h"
#include "spec/forward_config.h"

namespace dfa {

// What sm90_forward is passed.
struct Sm90ForwardArgs {
  TensorMap q, k, v, o;
  KernelArgs args;  // of its pointers o and lse are read
  TileGrid tile_grid;
  // Of `num_splits`: all work tiles, those of a head, and what splits of the last ones leave, of
  // each as many rows: [piece, rows, d_v] and [piece, rows].
  struct Partials {
    int work_tiles, of_head, rows;
    float *o, *lse;
  } partials;
};

// Rows of the boxes of 64 columns that the maps are for; of k and v it is block_k.
inline constexpr int kQBoxRows = 64;
inline constexpr int kOBoxRows = 16;

// Where a row of a tile of q or o is on its map, between column and batch: query and head, or,
// where heads are packed, the first of them and the query.
struct RowOnMap {
  int second, third;
};
template <ForwardConfig kConfig>
DFA_HOST_DEVICE RowOnMap row_on_map(const KernelArgs& args, const SeqlenInfo<kConfig.varlen>& seq,
                                    int row, int head) {
  if constexpr (kConfig.pack_gqa == 1) return {seq.q_box_row(args, row), head};
  return {head * kConfig.pack_gqa, seq.q_box_row(args, row / kConfig.query_rows())};
}

}  // namespace dfa
