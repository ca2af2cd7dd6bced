#pragma once

#include "kernels/forward/sm90_args.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/matrix.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/schedule/key_walk.cuh"
#include "kernels/schedule/stage_ring.cuh"
#include "kernels/softmax/online_softmax.cuh"
#include "kernels/softmax/split_softmax.cuh"
#include "kernels/tile/panel.h"
#include "kernels/tile/product.cuh"
#include "spec/config.h"

// FlashAttention forward for sm_90a (wgmma, the copy engine), in fp16 and bf16.
//
// A thread block stays on its multiprocessor and works through query tiles. Its first warpgroup has
// one thread that starts copies; each other warpgroup owns 64 queries of the tile. Life of tile i
// of k and v, walked from the last key that is seen down to the first:
//   copies start    when the stage that tile i - stages has left is empty
//   scores          product with q in step i, beside the weights of tile i + 1 times its v
//   weights         while that second product runs; with `pingpong` while other warpgroups' do
//   output          weights times v in step i - 1
// The output leaves through the place of q. Limits: d, dv up to 256; strides in multiples of 16
// bytes.
namespace dfa {

template <ForwardConfig kConfig>
struct Sm90Forward {
  static constexpr DType kElement = kConfig.element;
  static constexpr int kBlockK = kConfig.block_k;
  static constexpr int kGroups = kConfig.block_q / kGroupRows;  // warpgroups with queries
  static constexpr int kStages = kConfig.stages;
  static constexpr int kQStages = kConfig.q_stages;
  static constexpr int kDims = kConfig.head_dim / 16;  // steps of a product
  static constexpr int kSteps = kBlockK / 16;
  static constexpr int kKeys = kBlockK / 8;  // fragments
  static constexpr int kValues = kConfig.value_dim / 8;
  static constexpr int kGiven = kGroups == 3 ? 32 : 24;  // registers of the copying warpgroup
  static constexpr int kTaken = kGroups == 3 ? 160 : 240;
  static constexpr int kArrivals = 4 * kGroups;  // one lane of every warp

  // Shared memory: q (a group's part after the other's), k, v, barriers.
  static constexpr int kQGroupBytes = kConfig.q_group_bytes();
  static constexpr int kQBytes = kGroups * kQGroupBytes;
  static constexpr int kKBytes = tile_bytes(kBlockK, kConfig.head_dim);
  static constexpr int kVBytes = tile_bytes(kBlockK, kConfig.value_dim);
  static constexpr int kKAt = kQStages * kQBytes;
  static constexpr int kVAt = kKAt + kStages * kKBytes;
  static constexpr int kBarriersAt = kVAt + kStages * kVBytes;
  static_assert(kBarriersAt + 16 * (kQStages + 2 * kStages) <= kConfig.smem_bytes());

  template <int kCount>
  using Ring = StageRing<kCount, kArrivals>;
  struct Rings {
    Ring<kQStages> q;
    Ring<kStages> k, v;
  };

  static DFA_DEVICE Rings rings(unsigned smem) {
    const unsigned barriers = smem + kBarriersAt;
    return {{smem, barriers, kQBytes},
            {smem + kKAt, barriers + 16 * kQStages, kKBytes},
            {smem + kVAt, barriers + 16 * (kQStages + kStages), kVBytes}};
  }

  static DFA_DEVICE ItemWalk walk_of(const Sm90ForwardArgs& a) {
    return {a.items, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)};
  }

  static DFA_DEVICE QueryWork work_of(const KernelArgs& args, const ItemWalk& walk) {
    const int head = walk.head();
    return {head / args.hq, head % args.hq, head % args.hq / (args.hq / args.hk),
            walk.tile() * kConfig.block_q};
  }

  static DFA_DEVICE TileRange tiles_of(const Sm90ForwardArgs& a, const QueryWork& work) {
    return key_tiles(TileMask::of(a.args), work.query, kConfig.block_q, kBlockK);
  }

  // The copying thread.

  static DFA_DEVICE void load_q(const Sm90ForwardArgs& a, const QueryWork& work,
                                const Ring<kQStages>& ring) {
    constexpr int kPanels = panels(kConfig.head_dim);
    ring.wait_empty();
    ptx::arrive_expecting(ring.full(), kGroups * kPanels * panel_bytes(kGroupRows));
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        ptx::load_box(ring.tile() + group * kQGroupBytes + panel * panel_bytes(kGroupRows), a.q,
                      ring.full(), panel * kPanelColumns, work.query + group * kGroupRows,
                      work.head, work.batch);
      }
    }
  }

  template <int kColumns>
  static DFA_DEVICE void load_keys(const TensorMap& map, const QueryWork& work, int tile,
                                   Ring<kStages>& ring) {
    ring.wait_empty();
    ptx::arrive_expecting(ring.full(), tile_bytes(kBlockK, kColumns));
#pragma unroll
    for (int panel = 0; panel < panels(kColumns); ++panel) {
      ptx::load_box(ring.tile() + panel * panel_bytes(kBlockK), map, ring.full(),
                    panel * kPanelColumns, tile * kBlockK, work.kv_head, work.batch);
    }
    ring.next();
  }

  static DFA_DEVICE void copy(const Sm90ForwardArgs& a, Rings rings) {
    for (ItemWalk walk = walk_of(a); walk.more(); walk.next()) {
      const QueryWork work = work_of(a.args, walk);
      const TileRange tiles = tiles_of(a, work);
      load_q(a, work, rings.q);
      rings.q.next();
      for (int tile = tiles.end - 1; tile >= tiles.begin; --tile) {
        load_keys<kConfig.head_dim>(a.k, work, tile, rings.k);
        if (tile != tiles.end - 1) {
          load_keys<kConfig.value_dim>(a.v, work, tile + 1, rings.v);
        }
      }
      if (tiles.end > tiles.begin) {
        load_keys<kConfig.value_dim>(a.v, work, tiles.begin, rings.v);
      }
    }
  }

  // A warpgroup with queries.

  using Scores = float[kKeys][4];
  using Weights = unsigned[kSteps][4];
  using Output = float[kValues][4];

  static DFA_DEVICE void multiply_scores(Scores& scores, unsigned q, unsigned k) {
    const Descriptor left = k_in_columns(q), right = k_in_columns(k);
    ptx::multiply_shared<kElement, 0>(scores, left.bits(), right.bits());
#pragma unroll
    for (int step = 1; step < kDims; ++step) {
      ptx::multiply_shared<kElement, 1>(scores, left.moved(column_step<kGroupRows>(step)).bits(),
                                        right.moved(column_step<kBlockK>(step)).bits());
    }
    ptx::commit_products();
  }

  static DFA_DEVICE void multiply_values(Output& output, const Weights& weights, unsigned v) {
    const Descriptor right = k_in_rows<kBlockK>(v);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::multiply_registers<kElement>(output, weights[step], right.moved(row_step(step)).bits());
    }
    ptx::commit_products();
  }

  static DFA_DEVICE void round(Weights& weights, const Scores& scores) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      weights[k][0] = ptx::pack<kElement>(scores[2 * k][0], scores[2 * k][1]);
      weights[k][1] = ptx::pack<kElement>(scores[2 * k][2], scores[2 * k][3]);
      weights[k][2] = ptx::pack<kElement>(scores[2 * k + 1][0], scores[2 * k + 1][1]);
      weights[k][3] = ptx::pack<kElement>(scores[2 * k + 1][2], scores[2 * k + 1][3]);
    }
  }

  // Negates under a negative scale, hides what the mask hides.
  static DFA_DEVICE void prepare(Scores& scores, const KernelArgs& args, int query, int tile) {
    if (args.scale_log2 < 0) {
#pragma unroll
      for (int n = 0; n < kKeys; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[n][i] = -scores[n][i];
      }
    }
    const TileMask mask = TileMask::of(args);
    if (mask.needs(query, kGroupRows, tile * kBlockK, kBlockK)) {
      const int row = query + static_cast<int>(ptx::thread_index() / 32 % 4) * 16;
      hide_masked(reinterpret_cast<Sum<1, kKeys>&>(scores), mask, row, tile * kBlockK,
                  -ptx::infinity());
    }
  }

  // The group whose turn it is puts its products into the tensor cores' queue, then the next may.
  static DFA_DEVICE void wait_turn(int group) {
    if constexpr (kConfig.pingpong && kGroups > 1) ptx::sync_warps(1 + group, 256);
  }
  static DFA_DEVICE void pass_turn(int group) {
    if constexpr (kConfig.pingpong && kGroups > 1) {
      ptx::arrive_warps(1 + (group + 1 == kGroups ? 0 : group + 1), 256);
    }
  }

  static DFA_DEVICE void store_lse(const KernelArgs& args, const QueryWork& work, int row,
                                   const float (&lse)[2]) {
    const int lane = static_cast<int>(ptx::thread_index() % 32);
    if (args.lse == nullptr || lane % 4 != 0) return;
    float* head = args.lse + (static_cast<long long>(work.batch) * args.hq + work.head) * args.sq;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = row + half * 8 + lane / 4;
      if (query < args.sq) head[query] = lse[half];
    }
  }

  // Every warp stores its 16 rows, through the part of q that its group has read.
  static DFA_DEVICE void store_output(const Sm90ForwardArgs& a, const QueryWork& work, unsigned q,
                                      int group, const Output& output, const float (&inverse)[2]) {
    const unsigned lane = ptx::thread_index() % 32;
    const unsigned first = ptx::thread_index() / 32 % 4 * 16;
    ptx::sync_warps(4 + group, 128);  // all have read q
    const unsigned row = first + lane % 16;
    const unsigned row_start = q + row * kPanelRowBytes;
#pragma unroll
    for (int n = 0; n < kValues; n += 2) {
      const unsigned chunk = n % 8 + lane / 16;
      const unsigned to = row_start + n / 8 * panel_bytes(kGroupRows) + ((chunk ^ row % 8) << 4);
      unsigned rounded[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* two = output[n + i / 2] + i % 2 * 2;
        rounded[i] = ptx::pack<kElement>(two[0] * inverse[i % 2], two[1] * inverse[i % 2]);
      }
      ptx::store_matrices(to, rounded);
    }
    ptx::fence_async();
    __syncwarp();
    if (lane == 0) {
#pragma unroll
      for (int panel = 0; panel < panels(kConfig.value_dim); ++panel) {
        ptx::store_box(a.o, q + panel * panel_bytes(kGroupRows) + first * kPanelRowBytes,
                       panel * kPanelColumns,
                       work.query + group * kGroupRows + static_cast<int>(first), work.head,
                       work.batch);
      }
      ptx::commit_stores();
    }
  }

  static DFA_DEVICE void compute(const Sm90ForwardArgs& a, Rings rings, int group) {
    const KernelArgs& args = a.args;
    SplitSoftmax softmax(args.magnitude_log2);
    bool first_item = true;
    if (group == kGroups - 1) pass_turn(group);
    for (ItemWalk walk = walk_of(a); walk.more(); walk.next()) {
      const QueryWork work = work_of(a.args, walk);
      const TileRange tiles = tiles_of(a, work);
      const int query = work.query + group * kGroupRows;
      const unsigned q = rings.q.tile() + group * kQGroupBytes;
      Output output;
      Weights weights;
#pragma unroll
      for (int n = 0; n < kValues; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) output[n][i] = 0;
      }
      softmax.start();
      rings.q.wait_full();
      if (tiles.begin < tiles.end) {
        Scores scores;
        rings.k.wait_full();
        ptx::pin(scores);
        ptx::fence_products();
        multiply_scores(scores, q, rings.k.tile());
        ptx::wait_products<0>();
        ptx::pin(scores);
        rings.k.release();
        rings.k.next();
        prepare(scores, args, query, tiles.end - 1);
        softmax.follow(scores);
        softmax.weigh(scores);
        if (kQStages > 1 && !first_item) release_stored(rings.q, 1);
        bool moved = false, under_way = false;
#pragma unroll 1
        for (int tile = tiles.end - 2; tile >= tiles.begin; --tile) {
          end_values(output, weights, rings, under_way);
          under_way = true;
          round(weights, scores);
          if (moved) softmax.rescale(output);
          rings.k.wait_full();
          wait_turn(group);
          ptx::pin(scores);
          ptx::pin(output);
          ptx::pin(weights);
          ptx::fence_products();
          multiply_scores(scores, q, rings.k.tile());
          rings.v.wait_full();
          ptx::fence_products();
          multiply_values(output, weights, rings.v.tile());
          pass_turn(group);
          ptx::wait_products<1>();
          ptx::pin(scores);
          rings.k.release();
          rings.k.next();
          prepare(scores, args, query, tile);
          moved = softmax.follow(scores);
          softmax.weigh(scores);
        }
        end_values(output, weights, rings, under_way);
        round(weights, scores);
        if (moved) softmax.rescale(output);
        rings.v.wait_full();
        ptx::pin(output);
        ptx::pin(weights);
        ptx::fence_products();
        multiply_values(output, weights, rings.v.tile());
        end_values(output, weights, rings, true);
      } else if (kQStages > 1 && !first_item) {
        release_stored(rings.q, 1);
      }
      first_item = false;
      float inverse[2], lse[2];
      softmax.finish(inverse, lse);
      store_lse(args, work, query + static_cast<int>(ptx::thread_index() / 32 % 4) * 16, lse);
      store_output(a, work, q, group, output, inverse);
      if (kQStages == 1) release_stored(rings.q, 0);
      rings.q.next();
    }
    ptx::wait_stores_read();
    if (group == 0) wait_turn(group);
  }

  // The product of weights and v is done, its stage empty.
  static DFA_DEVICE void end_values(Output& output, Weights& weights, Rings& rings,
                                    bool under_way) {
    ptx::wait_products<0>();
    ptx::pin(output);
    ptx::pin(weights);
    if (!under_way) return;
    rings.v.release();
    rings.v.next();
  }

  // The stage `back` before this one: its output has left.
  static DFA_DEVICE void release_stored(const Ring<kQStages>& ring, int back) {
    if (ptx::thread_index() % 32 != 0) return;
    ptx::wait_stores_read();
    ptx::arrive(ring.barriers + 8 * (kQStages + (ring.stage + kQStages - back) % kQStages));
  }
};

template <ForwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    sm90_forward(const __grid_constant__ Sm90ForwardArgs a) {
  using Kernel = Sm90Forward<kConfig>;
  extern __shared__ __align__(1024) char smem[];
  const auto rings = Kernel::rings(ptx::shared_address(smem));
  if (threadIdx.x == 0) {
    rings.q.init();
    rings.k.init();
    rings.v.init();
    ptx::fence_barrier_init();
  }
  __syncthreads();
  const int group = __shfl_sync(ptx::kWholeWarp, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    ptx::give_registers<Kernel::kGiven>();
    if (threadIdx.x == 0) {
      ptx::prefetch(a.q);
      ptx::prefetch(a.k);
      ptx::prefetch(a.v);
      ptx::prefetch(a.o);
      Kernel::copy(a, rings);
    }
  } else {
    ptx::take_registers<Kernel::kTaken>();
    Kernel::compute(a, rings, group - 1);
  }
}

}  // namespace dfa
