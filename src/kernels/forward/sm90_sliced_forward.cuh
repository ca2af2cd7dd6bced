#pragma once

#include "kernels/forward/sm90_sliced_block.cuh"
// and then:
#include "kernels/forward/sm90_forward.cuh"
#include "kernels/forward/sm90_split_args.h"
#include "kernels/schedule/page_place.h"
#include "kernels/tile/left_operand.cuh"

// Hopper's forward of heads above 256 columns, in fp16 and bf16.
//
// No warpgroup has registers for 64 rows of such an output, so that two share them: each has half
// of the output's columns of the same 64 queries. Of two neighbouring tiles of keys each makes the
// scores of one and multiplies the weights of both with its half of v, its own from registers and
// the other's through shared memory. k and v come to each in pieces of 128 columns, through a ring
// of its own. Life of a step, two tiles of keys, walked from the last one down:
//   tensor cores   S of step i | own P V of step i - 1 | the other's P V of step i - 1
//   threads        weights of step i - 1 to the other | maxima of S with the other's | exponentials
// At one barrier a step both leave weights and maxima for each other; at a second one a warpgroup
// waits, before it writes its weights, until those before have been read. Both have the maxima of
// all keys, and so the same references; sums are added in the end. An odd number of tiles is filled
// up with one that is not seen. With `num_splits` what splits of a work tile's keys leave is
// combined by combine_splits. Limits: no pairs, pages or lists of blocks; d up to 576, dv up to
// 512.
namespace dfa {

template <ForwardConfig kConfig>
struct Sm90SlicedForward : Sm90ForwardProducer<kConfig>, Sm90ForwardConsumer<kConfig> {
  using Consumer = Sm90ForwardConsumer<kConfig>;
  using Producer = Sm90ForwardProducer<kConfig>;
  using Consumer::finish, Consumer::kBlockK, Consumer::kElement, Consumer::kKeys,
      Consumer::kPieceBytes, Consumer::kPieceColumns, Consumer::kSplitKv, Consumer::lane,
      Consumer::plain_keys, Consumer::prepare, Consumer::round, Consumer::warp_row;
  using typename Consumer::Logits, typename Consumer::Order, typename Consumer::Rings,
      typename Consumer::Ring, typename Consumer::Scores, typename Consumer::Weights,
      typename Producer::WorkTile;
  static constexpr int kColumns = kConfig.value_dim / 2;  // of the output, a warpgroup's
  static constexpr int kScorePieces = (kConfig.head_dim + kPieceColumns - 1) / kPieceColumns;
  static constexpr int kRestColumns = kColumns - kPieceColumns;  // of v's second piece
  static constexpr ForwardConfig of_half() {
    ForwardConfig half = kConfig;
    half.value_dim = kColumns;
    return half;
  }
  using Store = Sm90Store<of_half()>;
  using Args = Either<kConfig.split_kv, Sm90SplitForwardArgs, Sm90ForwardArgs>;
  using Output = typename Store::Output;
  static_assert(kBlockK == 64 && kRestColumns > 0 && kRestColumns <= kPieceColumns);

  // The tile of keys that is a warpgroup's in a step; before the first there is none.
  static DFA_DEVICE int tile_of(const TileRange& tiles, int step, int group) {
    return tiles.end - 1 - 2 * step - group;
  }
  static DFA_DEVICE int steps_of(const TileRange& tiles) {
    return tiles.end > tiles.begin ? (tiles.end - tiles.begin + 1) / 2 : 0;
  }

  // The producer.
  struct Keys {
    static DFA_DEVICE void start(const Args&, const WorkTile&, const TileRange&, Rings&) {}

    static DFA_DEVICE void rest(const Args& a, const WorkTile& work, const TileRange& tiles,
                                Rings& rings) {
      const int steps = steps_of(tiles);
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        load_k(a, work, tiles, step, rings);
        if (step > 0) load_v(a, work, tiles, step - 1, rings);
      }
      if (steps > 0) load_v(a, work, tiles, steps - 1, rings);
    }

    // The first key of a tile, or in pages, of a map its row. Where there is no tile, one that is
    // there stands in for it.
    static DFA_DEVICE int row_of(const Args& a, const WorkTile& work, const TileRange& tiles,
                                 int step, int group) {
      const int tile = tile_of(tiles, step, group);
      const int key = (tile < tiles.begin ? tiles.begin : tile) * kBlockK;
      if constexpr (kConfig.paged) return key;
      return work.seq.k_box_row(a.args, key);
    }

    static DFA_DEVICE void load_k(const Args& a, const WorkTile& work, const TileRange& tiles,
                                  int step, Rings& rings) {
#pragma unroll 1
      for (int piece = 0; piece < kScorePieces; ++piece) {
        const int column = piece * kPieceColumns, rest = kConfig.head_dim - column;
#pragma unroll
        for (int group = 0; group < 2; ++group) {
          load_piece<true>(a, work, row_of(a, work, tiles, step, group), column,
                           rest < kPieceColumns ? rest : kPieceColumns, rings.of_group[group]);
        }
      }
    }

    // First the tile of the warpgroup's own weights, then the other's.
    static DFA_DEVICE void load_v(const Args& a, const WorkTile& work, const TileRange& tiles,
                                  int step, Rings& rings) {
#pragma unroll 1
      for (int other = 0; other < 2; ++other) {
#pragma unroll
        for (int piece = 0; piece < 2; ++piece) {
#pragma unroll
          for (int group = 0; group < 2; ++group) {
            load_piece<false>(a, work, row_of(a, work, tiles, step, group ^ other),
                              group * kColumns + piece * kPieceColumns,
                              piece == 0 ? kPieceColumns : kRestColumns, rings.of_group[group]);
          }
        }
      }
    }

    template <bool kOfK>
    static DFA_DEVICE void load_piece(const Args& a, const WorkTile& work, int row, int column,
                                      int columns, Ring& ring) {
      const int panels_there = columns / kPanelColumns;
      ring.wait_empty();
      ptx::arrive_expecting(ring.full(), panels_there * panel_bytes(kBlockK));
      if constexpr (kConfig.paged) {
        load_boxes<kOfK>(a, work, row, column, panels_there, ring);
      } else {
        const int batch = work.seq.k_box_batch();
        for (int panel = 0; panel < panels_there; ++panel) {
          const unsigned to = ring.tile() + panel * panel_bytes(kBlockK);
          const int at = column + panel * kPanelColumns;
          ptx::load_box<kConfig.varlen>(to, kOfK ? a.k : a.v, ring.full(), at, row, work.kv_head,
                                        batch);
        }
      }
      ring.next();
    }

    // In boxes of rows that lie in one page each, counted back from the end of their own sequence,
    // as sm90_paged_forward does: rows behind the end, and those of an entry that is no page of the
    // cache, read as zeros.
    template <bool kOfK>
    static DFA_DEVICE void load_boxes(const Args& a, const WorkTile& work, int key, int column,
                                      int panels_there, const Ring& ring) {
      const PagedArgs& pages = a.args.paged;
#pragma unroll 1
      for (int first = 0; first < kBlockK; first += a.box_rows) {
        const int left = work.seq.k_rows - key - first;
        int rows = 0, end = 0;
        if (left > 0) {
          const PagePlace at = page_place(static_cast<unsigned>(key + first),
                                          static_cast<unsigned>(pages.page), a.page_inverse);
          const int page = pages.block_table[work.seq.batch * pages.table_row + at.column];
          if (page >= 0 && page < pages.pages) {
            rows = left < a.box_rows ? left : a.box_rows;
            end = page * (kOfK ? a.k_page : a.v_page) + static_cast<int>(at.begin) + rows;
          }
        }
        const unsigned to = ring.tile() + first * kPanelRowBytes;
        for (int panel = 0; panel < panels_there; ++panel) {
          ptx::load_box<true>(to + panel * panel_bytes(kBlockK), kOfK ? a.k : a.v, ring.full(),
                              column + panel * kPanelColumns, kBoxOrigin - rows, work.kv_head, end);
        }
      }
    }
  };

  static DFA_DEVICE void copy(const Args& a, Rings rings) {
    Producer::template copy_all<Keys>(a, rings);
  }

  // What two warpgroups leave for each other, and where they wait.
  static constexpr unsigned kShared = 1, kRead = 2, kBoth = 2 * kGroupThreads;
  static DFA_DEVICE void wait_shared() { ptx::sync_warps(kShared, kBoth); }
  static DFA_DEVICE void wait_read(int group) { ptx::sync_warps(kRead + group, kBoth); }
  static DFA_DEVICE void pass_read(int group) { ptx::arrive_warps(kRead + (group ^ 1), kBoth); }

  // Addresses that follow are made anew: no registers are left to hold them.
  static DFA_DEVICE Rings anew(Rings rings) {
    ptx::forget(rings.smem);
    return rings;
  }

  // Of a thread's first row; maxima lie in one of two places, as one may still be read.
  static DFA_DEVICE unsigned maxima(const Rings& rings, bool odd, int group) {
    return rings.maxima() + (2 * static_cast<int>(odd) + group) * kGroupRows * 4 +
           (warp_row() + static_cast<int>(lane() / 4)) * 4;
  }
  static DFA_DEVICE void leave_maxima(const Rings& rings, bool odd, int group,
                                      const float (&most)[2]) {
    if (lane() % 4 != 0) return;
    const unsigned to = maxima(anew(rings), odd, group);
    ptx::store_shared(to, __float_as_uint(most[0]));
    ptx::store_shared(to + 32, __float_as_uint(most[1]));
  }
  static DFA_DEVICE void join_maxima(const Rings& rings, bool odd, int group, float (&most)[2]) {
    const unsigned from = maxima(anew(rings), odd, group ^ 1);
    most[0] = fmaxf(most[0], ptx::load_shared_1(from));
    most[1] = fmaxf(most[1], ptx::load_shared_1(from + 32));
  }
  static DFA_DEVICE unsigned sums(const Rings& rings, int group) {
    return rings.sums() +
           (group * kGroupThreads + static_cast<int>(ptx::kept_thread_index()) % kGroupThreads) * 8;
  }

  // The scores of a tile; its last piece is not yet given back.
  template <int kPieceSteps, int kKeep>
  static DFA_DEVICE void multiply_piece(Scores& scores, unsigned q, unsigned k) {
    const Descriptor left = k_in_columns(q), right = k_in_columns(k);
    ptx::fence_products();
    ptx::multiply_shared<kElement, kKeep>(scores, left.bits(), right.bits());
#pragma unroll
    for (int step = 1; step < kPieceSteps; ++step) {
      ptx::multiply_shared<kElement, 1>(scores, left.moved(column_step<kGroupRows>(step)).bits(),
                                        right.moved(column_step<kBlockK>(step)).bits());
    }
    ptx::commit_products();
  }
  static DFA_DEVICE void multiply_scores(Scores& scores, unsigned q, Ring& pieces) {
    constexpr int kSteps = kPieceColumns / 16;
    constexpr int kLastSteps = kConfig.head_dim / 16 - (kScorePieces - 1) * kSteps;
    ptx::forget(q);  // descriptors are made anew
    ptx::pin(scores);
    multiply_piece<kSteps, 0>(scores, q, pieces.take());
#pragma unroll
    for (int piece = 1; piece < kScorePieces; ++piece) {
      constexpr int kWhole = kScorePieces - 1;
      const unsigned left = q + piece * column_step<kGroupRows>(kSteps);
      if (piece < kWhole) {
        multiply_piece<kSteps, 1>(scores, left, pieces.take());
      } else {
        multiply_piece<kLastSteps, 1>(scores, left, pieces.take());
      }
      pieces.give_back_done();
    }
  }

  // Weights times a piece of v: the first columns of the warpgroup's half, or the rest.
  template <typename Left>
  static DFA_DEVICE void multiply_first(Output& output, const Left& weights, Ring& pieces) {
    auto& columns = reinterpret_cast<float(&)[kPieceColumns / 8][4]>(output[0]);
    multiply_left<kBlockK>(columns, weights, pieces.take());
  }
  template <typename Left>
  static DFA_DEVICE void multiply_rest(Output& output, const Left& weights, Ring& pieces) {
    auto& columns = reinterpret_cast<float(&)[kRestColumns / 8][4]>(output[kPieceColumns / 8]);
    multiply_left<kBlockK>(columns, weights, pieces.take());
  }
  using OwnWeights = LeftInRegisters<kElement, kBlockK / 16>;
  using OtherWeights = LeftInPanel<kElement>;

  // A tile that is not there has no key that is seen.
  static DFA_DEVICE void hide_all(Scores& scores) {
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] = -ptx::infinity();
    }
  }

  static DFA_DEVICE void leave_weights(const Rings& rings, int group, const Weights& weights) {
    wait_read(group);
    store_rows<kGroupRows>(anew(rings).weights(group), warp_row(), weights, lane());
    ptx::fence_async();
  }
  static DFA_DEVICE OtherWeights other_weights(const Rings& rings, int group) {
    return OtherWeights::at(anew(rings).weights(group ^ 1));
  }

  // A warpgroup with queries: the recurrence.
  static DFA_DEVICE void compute(const Sm90ForwardArgs& a, Rings rings, int group) {
    constexpr int kHalf = kKeys / 2;
    const KernelArgs& args = a.args;
    LazyRescaleSoftmax softmax(Logits::magnitude_log2(args));
    Ring pieces = rings.of(group);
    bool odd = false;
    pass_read(group);
    for (;; rings.q.next()) {
      rings.q.wait_full();
      const Order order = Order::told(rings.order(), lane());
      if (order.place == Order::kOver) break;
      const int split = kSplitKv ? Order::told_piece(rings.order(), lane()) : -1;
      const TileRange plain = plain_keys(args, order.seq, order.row, args.scale_log2);
      const Logits logits(args, order.seq, order.head, order.row + warp_row());
      const unsigned q = rings.q.tile();
      const int steps = steps_of(order.tiles);
      Output output;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) output[n][i] = 0;
      }
      softmax.start();
      Scores scores;
      Weights own;
      float inverse[2], lse[2];
      bool moved = false;
      // Logits of the step's tile and, with the other warpgroup's, the references.
      const auto see = [&](int step) {
        const int tile = tile_of(order.tiles, step, group);
        if (tile < order.tiles.begin) {
          hide_all(scores);
        } else {
          prepare(scores, args, logits, order.seq, plain, order.row, tile, args.scale_log2);
        }
        if (step + 1 == steps) rings.q.release(lane());
        float most[2] = {softmax.highest(scores, 0), softmax.highest(scores, 1)};
        leave_maxima(rings, odd, group, most);
        wait_shared();
        join_maxima(rings, odd, group, most);
        odd = !odd;
        moved = softmax.update_max(most);
      };
      if (steps > 0) {
        multiply_scores(scores, q, pieces);
        ptx::wait_products<0>();
        ptx::pin(scores);
        pieces.template give_back<1>();
        see(0);
        softmax.exp2(scores);
        round(own, scores);
#pragma unroll 1
        for (int step = 1; step < steps; ++step) {
          if (moved) softmax.rescale(output);
          multiply_scores(scores, q, pieces);
          leave_weights(rings, group, own);
          ptx::pin(output);
          ptx::pin(own);
          multiply_first(output, OwnWeights{own}, pieces);
          ptx::wait_products<1>();
          ptx::pin(scores);
          pieces.template give_back<2>();
          multiply_rest(output, OwnWeights{own}, pieces);
          see(step);
          pieces.give_back_done();
          multiply_first(output, other_weights(rings, group), pieces);
          softmax.exp2(reinterpret_cast<float(&)[kHalf][4]>(scores[0]));
          pieces.give_back_done();
          multiply_rest(output, other_weights(rings, group), pieces);
          softmax.exp2(reinterpret_cast<float(&)[kHalf][4]>(scores[kHalf]));
          ptx::pin(own);
          round(own, scores);
          pieces.give_back_done();
          ptx::wait_products<0>();
          ptx::pin(output);
          pieces.template give_back<1>();
          pass_read(group);
        }
        if (moved) softmax.rescale(output);
        leave_weights(rings, group, own);
        ptx::pin(output);
        ptx::pin(own);
        multiply_first(output, OwnWeights{own}, pieces);
        multiply_rest(output, OwnWeights{own}, pieces);
        const Rings here = anew(rings);
        const unsigned to = sums(here, group), from = sums(here, group ^ 1);
        ptx::store_shared(to, __float_as_uint(softmax.sum(0)));
        ptx::store_shared(to + 4, __float_as_uint(softmax.sum(1)));
        wait_shared();
        softmax.add_sum(0, ptx::load_shared_1(from));
        softmax.add_sum(1, ptx::load_shared_1(from + 4));
        pieces.give_back_done();
        multiply_first(output, other_weights(rings, group), pieces);
        pieces.give_back_done();
        multiply_rest(output, other_weights(rings, group), pieces);
        finish(softmax, args, order.head, order.row, split, inverse, lse);
        pieces.give_back_done();
        ptx::wait_products<0>();
        ptx::pin(output);
        ptx::pin(own);
        pieces.template give_back<1>();
        pass_read(group);
      } else {
        rings.q.release(lane());
        finish(softmax, args, order.head, order.row, split, inverse, lse);
      }
      const typename Store::Rows rows{order.seq, order.head, order.row, 0, order.row + warp_row()};
      if (kSplitKv && split >= 0) {
        Store::piece(a, rows, split, output, inverse, lse, group * kColumns);
        continue;
      }
      if (group == 0) Store::lse(args, rows, lse);
      Store::straight(args, rows, output, inverse, group * kColumns);
    }
    wait_read(group);  // no barrier is left with threads at it
  }
};

template <ForwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    sm90_sliced_forward(const __grid_constant__ Sm90ForwardArgs a) {
  run_sm90_forward<Sm90SlicedForward<kConfig>>(a);
}

}  // namespace dfa
