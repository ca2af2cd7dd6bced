#pragma once

#include "kernels/either.h"
#include "kernels/forward/sm90_order.cuh"
#include "kernels/schedule/pipeline.cuh"
#include "kernels/schedule/recompute_notes.cuh"
#include "kernels/schedule/seqlen_info.h"
#include "kernels/variant/dropout.cuh"
#include "kernels/variant/exponent_logits.cuh"
#include "spec/forward_config.h"

namespace dfa {

// What all threads of sm90_forward know: its tiles, and what lies where in shared memory.
template <ForwardConfig kConfig>
struct Sm90ForwardBlock {
  static constexpr ForwardConfig config() { return kConfig; }
  static constexpr DType kElement = kConfig.element;
  static constexpr int kBlockK = kConfig.block_k;
  static constexpr int kGroups = kConfig.block_q / kGroupRows;  // warpgroups with queries
  static constexpr int kStages = kConfig.stages;
  static constexpr int kQStages = kConfig.q_stages;
  static constexpr int kDims = kConfig.head_dim / 16;  // steps of a product
  static constexpr int kHeld = kConfig.q_columns_in_regs / 16;
  static constexpr int kSteps = kBlockK / 16;
  static constexpr int kKeys = kBlockK / 8;  // fragments
  static constexpr int kValues = kConfig.value_dim / 8;
  static constexpr int kArrivals = 4 * kGroups;  // one lane of every warp
  static constexpr bool kPaired = kConfig.cluster == 2;
  static constexpr int kPacked = kConfig.pack_gqa;
  static constexpr int kQueryRows = kConfig.query_rows();
  static constexpr bool kSplitKv = kConfig.num_splits > 0;
  static constexpr bool kVarlen = kConfig.varlen;
  static constexpr bool kHelped = false;  // do warps beside the producer's copy keys?
  static constexpr bool kTransposed = kConfig.transpose_values;  // do they transpose values?
  using Seqlen = SeqlenInfo<kVarlen>;
  using Order = TileOrder<kVarlen>;
  using Logits = ExponentLogits<kConfig>;
  using Dropout = DropoutOf<kConfig>;

  // Shared memory: q (a group's part after the other's), k, v, barriers.
  static constexpr int kQGroupBytes = kConfig.q_group_bytes();
  static constexpr int kQBytes = kGroups * kQGroupBytes;
  static constexpr int kKBytes = kConfig.k_tile_bytes();
  static constexpr int kVBytes = kConfig.v_tile_bytes();
  static constexpr int kKAt = kQStages * kQBytes;
  static constexpr int kVAt = kKAt + kStages * kKBytes;
  static constexpr int kRawAt = kVAt + kStages * kVBytes;  // v as it lies, where that is transposed
  static constexpr int kRawTileBytes = kConfig.raw_tile_bytes();
  static constexpr int kOutputAt = kRawAt + (kTransposed ? kRawStages * kRawTileBytes : 0);
  static constexpr int kBiasAt = kOutputAt + kConfig.output_bytes();
  static constexpr int kBarriersAt = kBiasAt + kConfig.bias_bytes();
  static constexpr int kOrdersAt = kBarriersAt + 16 * (kQStages + 2 * kStages);
  static constexpr int kNotesAt = kOrdersAt + kQStages * kConfig.order_bytes();
  static constexpr int kNotedAt =
      kNotesAt + kRecomputeBytes;  // of work tiles from a counter: which ones
  static constexpr int kPagesAt =
      kNotesAt + (kConfig.static_max() ? kRecomputeBytes + kConfig.noted_bytes() : 0);
  static constexpr int kListedStepsAt = kPagesAt + kConfig.page_bytes();
  static constexpr int kRawBarriersAt = kListedStepsAt + kConfig.listed_step_bytes();
  static constexpr int kRawOverAt = kRawBarriersAt + (kTransposed ? 16 * kRawStages : 0);
  static constexpr int kEnd = kRawOverAt + (kTransposed ? 8 * kRawStages : 0);
  static_assert(kEnd == kConfig.smem_bytes());

  using QRing = Pipeline<kQStages, kArrivals>;
  using Ring = Pipeline<kStages, kArrivals, kPaired>;
  // Of values that warps of the block transpose: these fill v's stages and read the raw ones.
  using RawRing = CountedPipeline<kRawStages, kTransposers>;
  using VRing = Either<kTransposed, Pipeline<kStages, kArrivals, false, kTransposers>, Ring>;
  static_assert(!(kTransposed && kPaired));
  struct Rings {
    unsigned smem;
    QRing q;
    Ring k;
    VRing v;
    RawRing raw;

    DFA_DEVICE void init() const {
      q.init();
      k.init();
      v.init();
    }
    DFA_DEVICE void init_raw() const {
      raw.init();
      for (int i = 0; i < kRawStages; ++i) ptx::store_shared(smem + kRawOverAt + 4 * i, 0);
    }
    // A word of the raw stage: is nothing in it, and nothing to come?
    DFA_DEVICE unsigned raw_over() const { return smem + kRawOverAt + 4 * raw.stage(); }
    DFA_DEVICE unsigned order() const { return smem + kOrdersAt + q.stage * kConfig.order_bytes(); }
    DFA_DEVICE RecomputeNotes notes() const { return RecomputeNotes(smem + kNotesAt); }
  };

  static DFA_DEVICE Rings rings(unsigned smem) {
    const unsigned barriers = smem + kBarriersAt;
    return {smem,
            {smem, barriers, kQBytes},
            {smem + kKAt, barriers + 16 * kQStages, kKBytes},
            {smem + kVAt, barriers + 16 * (kQStages + kStages), kVBytes},
            {smem + kRawAt, smem + kRawBarriersAt, kRawTileBytes}};
  }
};

}  // namespace dfa
