#pragma once

#include "kernels/args.h"
#include "kernels/backward/serialized_dq.cuh"
#include "kernels/schedule/block_lists.cuh"
#include "kernels/schedule/key_work_tile.cuh"
#include "kernels/softmax/online_softmax.cuh"
#include "kernels/tile/product_tf32.cuh"
#include "kernels/tile/store.cuh"
#include "kernels/tile/tile.cuh"
#include "kernels/variant/dropout.cuh"
#include "spec/backward_config.h"

// FlashAttention backward, dk and dv, for sm_80 and up, in fp16 and bf16,
// in tf32, and in fp32 with multiply-adds.
//
// A thread block owns block_k keys of one key head and walks the queries that see them, those of
// every query head that shares the key head, one after another: sums stay in registers and their
// order is fixed. Everything is transposed, keys as rows, so that a warp's probabilities are the
// left operands of its own products:
//   p^T  = exp2(scale_log2 k q^T - lse_log2)      dv += p^T do     (LogitTransform)
//   ds^T = p^T * (v do^T - delta)                 dk += ds^T q
// With sharing = 2, two warps own the same keys: each computes the scores of half of a tile's
// queries and sums half of the columns of dk and dv, and they exchange p and ds once a step. q, do,
// lse and delta of the next tile are copied during a step; one barrier of all warps a step.
//
// With dq = ordered, the block's share of dq is a fifth product of every step (serialized_dq.cuh):
//   dq += ds k                                    all warps' ds, through shared memory
// and there is a second barrier a step, before which one thread acquires the dq semaphore. Queries
// are walked from the last tile on: under a causal mask all blocks then see the same tile at about
// the same time, and a block rarely waits.
namespace dfa {

template <BackwardConfig kConfig>
struct Sm80Keys {
  static constexpr DType kElement = kConfig.element;
  static constexpr int kBytes = bytes_of(kElement);
  static constexpr int kThreads = kConfig.threads();
  static constexpr int kWarpRows = kConfig.warp_rows();
  static constexpr int kSharing = kConfig.sharing;
  static constexpr bool kSerialized = kConfig.dq_serialized();
  static constexpr int kPartQueries = kConfig.block_q / kSharing;  // whose scores a warp computes
  static constexpr int kRows = kWarpRows / 16;  // fragments of a warp, likewise below
  static constexpr int kQueries = kPartQueries / 8;
  static constexpr int kDims = kConfig.head_dim / 8 / kSharing;
  static constexpr int kValues = kConfig.value_dim / 8 / kSharing;

  // Offsets in shared memory: k, v, stages of q, do, lse, delta, then what warps exchange.
  static constexpr int kKBytes = kBytes * kConfig.block_k * kConfig.head_dim;
  static constexpr int kFirstStage = kKBytes + kBytes * kConfig.block_k * kConfig.value_dim;
  static constexpr int kQBytes = kBytes * kConfig.block_q * kConfig.head_dim;
  static constexpr int kRowsAt = kQBytes + kBytes * kConfig.block_q * kConfig.value_dim;
  static constexpr int kStageBytes = kRowsAt + 8 * kConfig.block_q;
  static constexpr int kExchange = kFirstStage + kConfig.stages * kStageBytes;
  static constexpr int kExchangeDs = kSharing > 1 ? kConfig.exchange_bytes() / 2 : 0;
  static_assert(kExchange + kConfig.exchange_bytes() == kConfig.smem_bytes());
  static_assert(kKBytes % 128 == 0 && kQBytes % 128 == 0 && kStageBytes % 128 == 0);

  using DimReader = typename ReaderOf<kElement, kConfig.head_dim>::Type;
  using ValueReader = typename ReaderOf<kElement, kConfig.value_dim>::Type;

  // What a step walks: a tile of queries of a query head.
  struct Place {
    int head, tile;
  };

  using Logits = LogitsOf<kConfig>;
  using Dropout = DropoutOf<kConfig>;
  using WorkTile = KeyWorkTile<kConfig.varlen>;
  static DFA_DEVICE WorkTile work_tile_of(const KernelArgs& args, unsigned block) {
    if constexpr (kConfig.varlen) {
      return packed_key_work_tile<kConfig.block_k>(args, block);
    } else {
      return key_work_tile<kConfig.block_k, kSerialized>(args, block);
    }
  }

  // Of a work tile's steps, where there are lists of blocks.
  struct NoLists {
    DFA_DEVICE int steps() const { return 0; }
  };
  static DFA_DEVICE NoLists listed_steps(const KernelArgs&, const WorkTile&, TileRange) {
    return {};
  }
  static DFA_DEVICE ListedQuerySteps<kConfig.block_q> listed_steps(const BlockKernelArgs& args,
                                                                   const WorkTile& work,
                                                                   TileRange tiles) {
    const int group = args.hq / args.hk;
    return {args.blocks, work.seq.batch, work.head * group, group, work.key, tiles};
  }

  static DFA_DEVICE int warp_row(unsigned thread) {
    return static_cast<int>(thread / 32 / kSharing) * kWarpRows;
  }

  static DFA_DEVICE void load_keys(const KernelArgs& args, const WorkTile& work, unsigned smem) {
    const char* k = static_cast<const char*>(args.k) +
                    k_head_offset<kElement>(args, args.k_strides, work.seq, work.head);
    const char* v = static_cast<const char*>(args.v) +
                    k_head_offset<kElement>(args, args.v_strides, work.seq, work.head);
    const int rows = work.seq.sk(args);
    load_tile<kElement, kConfig.block_k, kConfig.head_dim, kThreads>(smem, k, args.k_strides.row,
                                                                     work.key, rows, args.d);
    load_tile<kElement, kConfig.block_k, kConfig.value_dim, kThreads>(
        smem + kKBytes, v, args.v_strides.row, work.key, rows, args.d_v);
  }

  // lse and delta are padded to whole tiles.
  static DFA_DEVICE void load_row_values(const KernelArgs& args, long long row, unsigned stage) {
    const int thread = static_cast<int>(threadIdx.x);
    constexpr int kCopies = kConfig.block_q / 4;
    if (thread < kCopies) {
      ptx::copy_16(stage + kRowsAt + thread * 16, args.lse_log2 + row + thread * 4, true);
    } else if (thread < 2 * kCopies) {
      ptx::copy_16(stage + kRowsAt + thread * 16, args.delta + row + (thread - kCopies) * 4, true);
    }
  }

  static DFA_DEVICE void load_queries(const KernelArgs& args, SeqlenInfo<kConfig.varlen> seq,
                                      int head, int tile, unsigned stage) {
    // Addresses are made anew for every tile: across the loop they would take registers.
    seq.forget([](int& value) { asm volatile("" : "+r"(value)); });
    asm volatile("" : "+r"(head));
    const char* q =
        static_cast<const char*>(args.q) + q_head_offset<kElement>(args, args.q_strides, seq, head);
    const char* d_o = static_cast<const char*>(args.d_o) +
                      q_head_offset<kElement>(args, args.o_strides, seq, head);
    const int first = tile * kConfig.block_q, rows = seq.sq(args);
    load_tile<kElement, kConfig.block_q, kConfig.head_dim, kThreads>(stage, q, args.q_strides.row,
                                                                     first, rows, args.d);
    load_tile<kElement, kConfig.block_q, kConfig.value_dim, kThreads>(
        stage + kQBytes, d_o, args.o_strides.row, first, rows, args.d_v);
    load_row_values(args, seq.padded_offset(args, head) + first, stage);
  }

  // Warps that share keys lie next to each other, on different quarters of the multiprocessor.
  static DFA_DEVICE unsigned part() { return threadIdx.x / 32 % kSharing; }

  using Operand = typename Rounded<kElement, kRows, kQueries>::Type;
  static constexpr int kSteps = Rounded<kElement, kRows, kQueries>::kColumnFragments;

  // dv += p^T do and dk += ds^T q over the rows of this warp's part, then over those of the warps
  // that share its keys.
  // `before_meeting` is called when there is nothing left to do alone.
  template <typename BeforeMeeting>
  static DFA_DEVICE void accumulate(Sum<kRows, kValues>& dv, Sum<kRows, kDims>& dk, Operand& p,
                                    Operand& ds, unsigned stage, char* exchange,
                                    const BeforeMeeting& before_meeting) {
    char* exchange_ds = exchange + kExchangeDs;
    if constexpr (kSharing > 1) publish(p, exchange);
    if constexpr (kSerialized) {
      publish_matrices(ds, exchange_ds);
    } else if constexpr (kSharing > 1) {
      publish(ds, exchange_ds);
    }
    accumulate_part(dv, dk, p, ds, stage, part());
    before_meeting();
    if constexpr (kSerialized) {
      __syncthreads();
    } else if constexpr (kSharing > 1) {
      ptx::sync_warps(1 + threadIdx.x / 32 / kSharing, 32 * kSharing);
    }
#pragma unroll
    for (unsigned i = 1; i < kSharing; ++i) {
      fetch(p, exchange, part() ^ i);
      if constexpr (kSerialized) {
        fetch_matrices(ds, exchange_ds, part() ^ i);
      } else {
        fetch(ds, exchange_ds, part() ^ i);
      }
      accumulate_part(dv, dk, p, ds, stage, part() ^ i);
    }
  }

  static DFA_DEVICE void accumulate_part(Sum<kRows, kValues>& dv, Sum<kRows, kDims>& dk,
                                         const Operand& p, const Operand& ds, unsigned stage,
                                         unsigned of_part) {
    const unsigned row = of_part * kPartQueries;
    multiply<kElement, kSharing>(
        dv, p, ValueReader::by_rows(stage + kQBytes + kBytes * row * kConfig.value_dim, part()));
    multiply<kElement, kSharing>(
        dk, ds, DimReader::by_rows(stage + kBytes * row * kConfig.head_dim, part()));
  }

  // An operand in the exchange buffer: as its fragments lie in registers, 16 bytes a lane.
  static DFA_DEVICE uint4* slot(char* exchange, unsigned of_part) {
    const unsigned warp = threadIdx.x / 32 / kSharing * kSharing + of_part;
    return reinterpret_cast<uint4*>(exchange) + warp * kRows * kSteps * 32 + threadIdx.x % 32;
  }

  static DFA_DEVICE void publish(const Operand& operand, char* exchange) {
    uint4* to = slot(exchange, part());
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        to[(m * kSteps + k) * 32] = ptx::to_bits(operand[m][k]);
      }
    }
  }

  static DFA_DEVICE void fetch(Operand& operand, char* exchange, unsigned of_part) {
    const uint4* from = slot(exchange, of_part);
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        ptx::from_bits(operand[m][k], from[(m * kSteps + k) * 32]);
      }
    }
  }

  // Where the next fragment of ds that dq is made of lies, for the part of a block's queries and
  // the warps of its keys that computed it.
  static DFA_DEVICE unsigned matrices_of(unsigned keys, unsigned of_part) {
    return (keys * kSharing + of_part) * kRows * kSteps * 512;
  }

  // ds for reading both as it is and transposed: matrices of 8 x 8, a row 16 bytes.
  static DFA_DEVICE void publish_matrices(const Operand& ds, char* exchange) {
    const unsigned lane = threadIdx.x % 32;
    char* to = exchange + matrices_of(threadIdx.x / 32 / kSharing, part()) + lane * 4;
#pragma unroll
    for (int i = 0; i < kRows * kSteps * 4; ++i) {
      *reinterpret_cast<unsigned*>(to + i * 128) = ds[i / 4 / kSteps][i / 4 % kSteps][i % 4];
    }
  }

  static DFA_DEVICE void fetch_matrices(Operand& ds, char* exchange, unsigned of_part) {
    const unsigned from = ptx::shared_address(exchange) +
                          matrices_of(threadIdx.x / 32 / kSharing, of_part) + threadIdx.x % 32 * 16;
#pragma unroll
    for (int i = 0; i < kRows * kSteps; ++i)
      ptx::ldmatrix(ds[i / kSteps][i % kSteps], from + i * 512);
  }

  // This warp's part of the tile of dq: ds of all keys, transposed, times k.
  using Dq = SerializedDq<kConfig>;
  static DFA_DEVICE void multiply_dq(typename Dq::Share& dq, unsigned keys, unsigned exchange_ds) {
    asm volatile("" : "+r"(keys), "+r"(exchange_ds));  // addresses are made anew, as above
    const auto k_rows = DimReader::by_rows(keys, static_cast<unsigned>(Dq::part()));
    const unsigned lane = ptx::thread_index() % 32;
    const unsigned matrix = lane / 8 % 2 * 2 + lane / 16;  // keys 8 to 15 before queries 8 to 15
    const unsigned from = exchange_ds + matrix * 128 + lane % 8 * 16;
    const unsigned query = static_cast<unsigned>(Dq::first_row()) / 16;
#pragma unroll
    for (unsigned key = 0; key < kConfig.block_k / 16; ++key) {
      unsigned left[Dq::kRows][4];
#pragma unroll
      for (unsigned m = 0; m < Dq::kRows; ++m) {
        const unsigned fragment = key % kRows * kSteps + (query + m) % kSteps;
        ptx::ldmatrix_trans(left[m],
                            from + matrices_of(key / kRows, (query + m) / kSteps) + fragment * 512);
      }
      multiply_columns_step<kElement, Dq::kParts>(dq, left, k_rows, key);
    }
  }

  // Scores become probabilities; `rows` points at the tile's lse_log2.
  static DFA_DEVICE void probabilities(const KernelArgs& args, Sum<kRows, kQueries>& scores,
                                       const float* rows) {
    const unsigned column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < kQueries; ++n) {
      const float2 lse = *reinterpret_cast<const float2*>(rows + n * 8 + column);
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float of_query = i % 2 == 0 ? lse.x : lse.y;
          scores[m][n][i] = probability<kElement, Logits>(args, scores[m][n][i], of_query);
        }
      }
    }
  }

  // dp becomes ds = p * (dp - delta); `rows` points at the tile's delta.
  static DFA_DEVICE void score_gradients(const Dropout& dropout, Sum<kRows, kQueries>& dp,
                                         const Sum<kRows, kQueries>& p, const float* rows) {
    const unsigned column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < kQueries; ++n) {
      const float2 delta = *reinterpret_cast<const float2*>(rows + n * 8 + column);
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          dp[m][n][i] =
              dropout.score_gradient(p[m][n][i], dp[m][n][i], i % 2 == 0 ? delta.x : delta.y);
        }
      }
    }
  }
};

template <BackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.ctas)
    sm80_backward_keys(const __grid_constant__ KernelArgsOf<kConfig> args) {
  using Kernel = Sm80Keys<kConfig>;
  constexpr int kStages = kConfig.stages;
  constexpr DType kElement = kConfig.element;
  extern __shared__ __align__(128) char smem[];

  if constexpr (kConfig.varlen) {
    if (!has_packed_key_work_tile(args, blockIdx.x)) return;
  }
  const auto work = Kernel::work_tile_of(args, blockIdx.x);
  const int group = args.hq / args.hk;
  const auto mask = MaskOf<kConfig>::of(args, work.seq);
  const TileRange tiles = query_tiles(mask, work.key, kConfig.block_k, kConfig.block_q);
  const unsigned keys = ptx::shared_address(smem);
  const auto stage_at = [&](int step) {
    return Kernel::kFirstStage + static_cast<unsigned>(step) % kStages * Kernel::kStageBytes;
  };

  // Steps walk the query heads of the group and the tiles of each from the last.
  const int count = tiles.end - tiles.begin;
  const auto listed = Kernel::listed_steps(args, work, tiles);
  const int steps = kConfig.blocks ? listed.steps() : count * group;
  const auto place_of = [&](int step) {
    if constexpr (kConfig.blocks) {
      return listed.at(step);
    } else {
      const int round = step / count;
      return
          typename Kernel::Place{work.head * group + round, tiles.end - 1 - (step - round * count)};
    }
  };
  const auto load = [&](int step) {
    if (step < steps) {
      const auto place = place_of(step);
      if (kConfig.blocks && place.tile < 0) return ptx::commit_copies();
      Kernel::load_queries(args, work.seq, place.head, place.tile, keys + stage_at(step));
    }
    ptx::commit_copies();
  };

  Kernel::load_keys(args, work, keys);
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) load(i);

  const int warp_row = Kernel::warp_row(threadIdx.x);
  const unsigned part_row = Kernel::part() * Kernel::kPartQueries;
  const auto k_rows =
      Kernel::DimReader::by_rows(keys + Kernel::kBytes * warp_row * kConfig.head_dim);
  const auto v_rows = Kernel::ValueReader::by_rows(keys + Kernel::kKBytes +
                                                   Kernel::kBytes * warp_row * kConfig.value_dim);
  const typename Kernel::Dropout dropout(args, work.seq.batch);
  Sum<Kernel::kRows, Kernel::kDims> dk;
  Sum<Kernel::kRows, Kernel::kValues> dv;
  clear(dk);
  clear(dv);

  // Lets the next block add to the tiles of dq that this one is done with before `step`.
  const auto release = [&](int step) {
    if (threadIdx.x != 0 || step == 0) return;
    const auto place = place_of(step - 1);
    if (Kernel::Dq::releases_at(place.tile, tiles.begin)) {
      Kernel::Dq::release(args, {work.seq, place.head}, place.tile, work.key);
    }
  };

#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    ptx::wait_copies<kStages - 2>();
    __syncthreads();
    if constexpr (Kernel::kSerialized) release(step);
    load(step + kStages - 1);
    if constexpr (kStages == 1) __syncthreads();
    const auto place = place_of(step);
    if (kConfig.blocks && place.tile < 0) continue;

    const unsigned stage = keys + stage_at(step);
    const float* rows =
        reinterpret_cast<const float*>(smem + stage_at(step) + Kernel::kRowsAt) + part_row;

    Sum<Kernel::kRows, Kernel::kQueries> p, dp;
    clear(p);
    clear(dp);
    multiply_rows<kElement>(
        p, k_rows,
        Kernel::DimReader::by_columns(stage + Kernel::kBytes * part_row * kConfig.head_dim));
    multiply_rows<kElement>(
        dp, v_rows,
        Kernel::ValueReader::by_columns(stage + Kernel::kQBytes +
                                        Kernel::kBytes * part_row * kConfig.value_dim));
    typename Kernel::Logits::template Shares<Kernel::kRows, Kernel::kQueries> shares;
    typename Kernel::Logits(args, work.seq, place.head)
        .apply_transposed(args, p, work.key + Kernel::warp_row(ptx::thread_index()),
                          place.tile * kConfig.block_q + static_cast<int>(part_row), shares);
    if (mask.needs(place.tile * kConfig.block_q, kConfig.block_q, work.key, kConfig.block_k)) {
      hide_masked_transposed(p, mask, work.key + Kernel::warp_row(ptx::thread_index()),
                             place.tile * kConfig.block_q + static_cast<int>(part_row),
                             Kernel::Logits::hidden(args));
    }
    if constexpr (kConfig.blocks) {
      const BlockArgs& blocks = args.blocks;
      if (place.bitmap != kFullBlock) {
        hide_unlisted_transposed(p, blocks.bits_of(place.bitmap), blocks.row_words,
                                 place.part * kConfig.block_q + static_cast<int>(part_row),
                                 work.key % blocks.block_k + Kernel::warp_row(ptx::thread_index()),
                                 Kernel::Logits::hidden(args));
      }
    }
    Kernel::probabilities(args, p, rows);
    dropout.of_head(place.head)
        .mark_transposed(args, p, work.key + Kernel::warp_row(ptx::thread_index()),
                         place.tile * kConfig.block_q + static_cast<int>(part_row));
    Kernel::score_gradients(dropout, dp, p, rows + kConfig.block_q);
    Kernel::Logits::chain(dp, shares);
    Kernel::Dropout::drop_marked(p);

    typename Kernel::Operand p_rounded, ds_rounded;
    round_to_left<kElement>(p_rounded, p);
    round_to_left<kElement>(ds_rounded, dp);
    if constexpr (Kernel::kSerialized) {
      using Dq = typename Kernel::Dq;
      const typename Dq::Head head{work.seq, place.head};
      Kernel::accumulate(dv, dk, p_rounded, ds_rounded, stage, smem + Kernel::kExchange, [&] {
        if (threadIdx.x == 0 && Dq::acquires_at(place.tile, tiles.end)) {
          Dq::acquire(args, head, place.tile, work.key);
        }
      });
      typename Dq::Share share;
      clear(share);
      Kernel::multiply_dq(share, keys, keys + Kernel::kExchange + Kernel::kExchangeDs);
      Dq::add(args, head, place.tile, work.key, share);
    } else {
      Kernel::accumulate(dv, dk, p_rounded, ds_rounded, stage, smem + Kernel::kExchange, [] {});
    }
  }

  ptx::wait_copies<0>();
  __syncthreads();  // dk and dv take the places of k and v
  if constexpr (Kernel::kSerialized) release(steps);
  const auto owned = Kernel::work_tile_of(args, ptx::block_index());
  const int first_row = Kernel::warp_row(ptx::thread_index());
  float factor[Kernel::kRows][2];
#pragma unroll
  for (int m = 0; m < Kernel::kRows; ++m) factor[m][0] = factor[m][1] = args.scale;
  stage_sums<kElement, Kernel::kSharing>(smem, first_row, Kernel::part(), dk, factor);
#pragma unroll
  for (int m = 0; m < Kernel::kRows; ++m) {
    factor[m][0] = factor[m][1] = Kernel::Dropout::factor(args);
  }
  stage_sums<kElement, Kernel::kSharing>(smem + Kernel::kKBytes, first_row, Kernel::part(), dv,
                                         factor);
  __syncthreads();
  store_tile<kElement, kConfig.block_k, kConfig.head_dim, Kernel::kThreads>(
      smem,
      static_cast<char*>(args.dk) +
          k_head_offset<kElement>(args, args.k_strides, owned.seq, owned.head),
      args.k_strides.row, owned.key, owned.seq.sk(args), args.d);
  store_tile<kElement, kConfig.block_k, kConfig.value_dim, Kernel::kThreads>(
      smem + Kernel::kKBytes,
      static_cast<char*>(args.dv) +
          k_head_offset<kElement>(args, args.v_strides, owned.seq, owned.head),
      args.v_strides.row, owned.key, owned.seq.sk(args), args.d_v);
}

}  // namespace dfa
