#pragma once

#include "kernels/forward/sm90_forward_block.cuh"
#include "kernels/schedule/streamed_ring.cuh"
#include "kernels/tile/panel.h"

namespace dfa {

// What all threads of sm90_sliced_forward know. Two warpgroups have the same 64 queries; pieces of
// k and v come to each in a ring of its own.
template <ForwardConfig kConfig>
requires(kConfig.sliced()) struct Sm90ForwardBlock<kConfig> {
  static constexpr ForwardConfig config() { return kConfig; }
  static constexpr DType kElement = kConfig.element;
  static constexpr int kBlockK = kConfig.block_k;
  static constexpr int kGroups = 1;  // of queries
  static constexpr int kStages = kConfig.stages;
  static constexpr int kQStages = kConfig.q_stages;
  static constexpr int kDims = kConfig.head_dim / 16;
  static constexpr int kHeld = 0;
  static constexpr int kSteps = kBlockK / 16;
  static constexpr int kKeys = kBlockK / 8;
  static constexpr bool kPaired = false;
  static constexpr int kPacked = kConfig.pack_gqa;
  static constexpr int kQueryRows = kConfig.query_rows();
  static constexpr bool kSplitKv = kConfig.num_splits > 0 || kConfig.split_kv;
  static constexpr bool kVarlen = kConfig.varlen;
  static constexpr bool kHelped = false, kTransposed = false;
  using Seqlen = SeqlenInfo<kVarlen>;
  using Order = TileOrder<kVarlen>;
  using Logits = ExponentLogits<kConfig>;
  using Dropout = DropoutOf<kConfig>;

  static constexpr int kPieceColumns = kConfig.piece_columns();
  static constexpr int kPieceBytes = panels(kPieceColumns) * panel_bytes(kBlockK);

  // Shared memory: q, the rings, weights, maxima and sums that warpgroups leave for each other,
  // barriers.
  static constexpr int kQGroupBytes = tile_bytes(kGroupRows, kConfig.head_dim);
  static constexpr int kRingBytes = kStages * kPieceBytes;
  static constexpr int kWeightBytes = tile_bytes(kGroupRows, kBlockK);
  static constexpr int kWeightsAt = kQGroupBytes + 2 * kRingBytes;
  static constexpr int kMaximaAt = kWeightsAt + 2 * kWeightBytes;
  static constexpr int kSumsAt = kMaximaAt + 2 * 2 * kGroupRows * 4;
  static constexpr int kBarriersAt = kSumsAt + 2 * kGroupThreads * 8;
  static constexpr int kOrdersAt = kBarriersAt + 16 * (1 + 2 * kStages);
  static constexpr int kNotesAt = kOrdersAt + kConfig.order_bytes(), kNotedAt = kNotesAt;
  static_assert(kNotesAt == kConfig.smem_bytes() && kQStages == 1 && !kConfig.static_max());

  using QRing = Pipeline<1, 8>;
  using Ring = StreamedRing<kStages>;
  struct Rings {
    unsigned smem;
    QRing q;
    Ring of_group[2];

    DFA_DEVICE void init() const {
      q.init();
      of_group[0].init();
      of_group[1].init();
    }
    DFA_DEVICE Ring of(int group) const {
      return {{smem + kQGroupBytes + group * kRingBytes,
               smem + kBarriersAt + 16 * (1 + group * kStages), kPieceBytes}};
    }
    DFA_DEVICE unsigned weights(int group) const {
      return smem + kWeightsAt + group * kWeightBytes;
    }
    DFA_DEVICE unsigned maxima() const { return smem + kMaximaAt; }
    DFA_DEVICE unsigned sums() const { return smem + kSumsAt; }
    DFA_DEVICE unsigned order() const { return smem + kOrdersAt; }
    DFA_DEVICE RecomputeNotes notes() const { return RecomputeNotes(smem + kNotesAt); }
  };

  static DFA_DEVICE Rings rings(unsigned smem) {
    Rings all{smem, {smem, smem + kBarriersAt, kQGroupBytes}, {}};
    all.of_group[0] = all.of(0);
    all.of_group[1] = all.of(1);
    return all;
  }
};

}  // namespace dfa
