#pragma once

#include "kernels/forward/e4m3_factors.cuh"
#include "kernels/forward/sm90_forward.cuh"
#include "kernels/forward/transpose_values.cuh"

// Hopper's forward in e4m3: the roles, barriers and walk of sm90_forward, with bf16 output.
//
// v comes transposed, by pack_values before or by other warps of the block (`transpose_values`),
// with its keys permuted, so that a thread's weights are left operands as they come out of its
// scores. Tensor cores keep 14 bits of a sum in e4m3, so each step's product of weights and v
// starts anew and is added to the output in fp32. Where registers do not last for all of its
// columns they come in parts (value_parts), each behind some of the exponentials. Life of a step,
// walked from the last key down:
//   tensor cores   S of tile i | part 0 of P V of tile i + 1 | part 1 … | last part
//   threads        wait for S, maxima, some exponentials, add part 0, more, … | add the last part
// Factors of q and k go into the scale of a work tile, that of v into its last division. Where
// blocks of rows have their own (`descale_blocks`), each tile of keys has a scale, and references
// are in exponents of 2, whatever it is; v's is what the step's product is added times. A row's
// reference follows its maximum: weights reach from 2^8 down to the least number of e4m3.
namespace dfa {

template <ForwardConfig kConfig>
struct Sm90E4m3Forward : Sm90Forward<kConfig> {
  using Base = Sm90Forward<kConfig>;
  using Base::kBlockK, Base::kGroups, Base::kKeys, Base::kPacked, Base::kQueryRows, Base::kValues;
  using typename Base::Order, typename Base::Output, typename Base::Rings, typename Base::Scores,
      typename Base::Store, typename Base::Logits;
  using Softmax = LazyRescaleSoftmaxOf<E4m3Weights>;
  static constexpr int kDims = kConfig.head_dim / 32;  // steps of a product
  static constexpr int kSteps = kBlockK / 32;
  static constexpr int kParts = kConfig.value_parts();
  static constexpr int kPart = kValues / kParts;  // fragments
  static constexpr int kWeighed = kKeys / kParts;
  static constexpr bool kBlocks = kConfig.descale_blocks;
  using Factors = E4m3Factors<kBlocks>;
  using StepFactors = typename Factors::Steps;
  using Weights = unsigned[kSteps][4];
  using Part = float[kPart][4];
  static_assert(kConfig.q_stages == 2 && !Base::kSplitKv && Logits::kPlain && !kConfig.sink);
  static_assert(kValues % kParts == 0 && kKeys % kParts == 0);

  // What warps beside the producer's do.
  static DFA_DEVICE void transpose_values(const Rings& rings) {
    TransposeValues<kConfig>::run(rings);
  }

  static DFA_DEVICE void multiply_scores(Scores& scores, unsigned q, unsigned k) {
    const Descriptor left = k_in_columns(q), right = k_in_columns(k);
    ptx::fence_products();
    ptx::multiply_shared<DType::e4m3, 0>(scores, left.bits(), right.bits());
#pragma unroll
    for (int step = 1; step < kDims; ++step) {
      ptx::multiply_shared<DType::e4m3, 1>(scores, left.moved(column_step<kGroupRows>(step)).bits(),
                                           right.moved(column_step<kBlockK>(step)).bits());
    }
    ptx::commit_products();
  }

  // Columns of one part of v, which are rows of its tile.
  static DFA_DEVICE void multiply_values(Part& sums, const Weights& weights, unsigned v, int part) {
    const unsigned rows = v + part * kPart * 8 * kConfig.v_row_bytes();
    const Descriptor right =
        kConfig.narrow_values() ? k_in_narrow_columns(rows) : k_in_columns(rows);
    ptx::fence_products();
    ptx::multiply_registers_rows<DType::e4m3, 0>(sums, weights[0], right.bits());
#pragma unroll
    for (int step = 1; step < kSteps; ++step) {
      ptx::multiply_registers_rows<DType::e4m3, 1>(
          sums, weights[step], right.moved(column_step<kConfig.value_dim>(step)).bits());
    }
    ptx::commit_products();
  }

  // The part's product is done.
  static DFA_DEVICE void add(Output& output, Part& sums, Weights& weights, int part,
                             const StepFactors& factors) {
    ptx::wait_products<0>();
    ptx::pin(sums);
    ptx::pin(weights);
#pragma unroll
    for (int n = 0; n < kPart; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& sum = output[part * kPart + n][i];
        if constexpr (kBlocks) {
          sum = fmaf(sums[n][i], factors.values.value, sum);
        } else {
          sum += sums[n][i];
        }
      }
    }
  }

  // The parts but the last, which is left under way, one after the other; `beside` runs beside each
  // of all of them.
  template <typename Beside>
  static DFA_DEVICE void add_parts(Output& output, Part& sums, Weights& weights, unsigned v,
                                   const StepFactors& factors, const Beside& beside) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      beside(part);
      if (part + 1 == kParts) continue;
      add(output, sums, weights, part, factors);
      multiply_values(sums, weights, v, part + 1);
    }
  }

  // The last part, then the stage of v is empty.
  static DFA_DEVICE void end_values(Output& output, Part& sums, Weights& weights, Rings& rings,
                                    const StepFactors& factors) {
    add(output, sums, weights, kParts - 1, factors);
    rings.v.release(Base::lane());
    rings.v.next();
  }

  // Keys of 16 as key_at() has them.
  static DFA_DEVICE void round(Weights& weights, const Scores& scores) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* first = scores[4 * k + i / 2 * 2] + i % 2 * 2;
        const float* second = scores[4 * k + i / 2 * 2 + 1] + i % 2 * 2;
        weights[k][i] = ptx::pack_e4m3(first[0], first[1], second[0], second[1]);
      }
    }
  }

  static DFA_DEVICE Factors factors_of(const Sm90E4m3Args& a, const Order& order, int row) {
    const int kv_head = order.head / (a.args.hq / kPacked / a.args.hk);
    return Factors::of(a, order.seq.batch, kv_head, row / kQueryRows);
  }

  // Keys whose scores are used as they come, where each tile has a sign of its own.
  static DFA_DEVICE TileRange plain_keys(const KernelArgs& args, const Order& order, int row,
                                         const Factors& factors) {
    if constexpr (kBlocks) {
      return Base::plain_keys(args, order.seq, row, 1);
    } else {
      return Base::plain_keys(args, order.seq, row, factors.scale_log2);
    }
  }
  static DFA_DEVICE void prepare(Scores& scores, const KernelArgs& args, const Logits& logits,
                                 const Order& order, const TileRange& plain, int row, int tile,
                                 const Factors& factors, const StepFactors& of_step) {
    if constexpr (kBlocks) {
      const float scale = of_step.scores.scale_log2;
      Base::prepare(scores, args, logits, order.seq, Base::negates(scale) ? TileRange{0, 0} : plain,
                    row, tile, scale);
    } else {
      Base::prepare(scores, args, logits, order.seq, plain, row, tile, factors.scale_log2);
    }
  }

  static DFA_DEVICE bool update_max(Softmax& softmax, const Scores& scores,
                                    const StepFactors& factors) {
    if constexpr (kBlocks) {
      const float magnitude = e4m3_magnitude(factors.scores.scale_log2);
      const float most[2] = {magnitude * Softmax::highest(scores, 0),
                             magnitude * Softmax::highest(scores, 1)};
      return softmax.update_max(most);
    } else {
      return softmax.update_max(scores);
    }
  }

  template <int kColumns>
  static DFA_DEVICE void exp2(Softmax& softmax, float (&scores)[kColumns][4],
                              const StepFactors& factors) {
    if constexpr (kBlocks) {
      softmax.exp2(scores, e4m3_magnitude(factors.scores.scale_log2));
    } else {
      softmax.exp2(scores);
    }
  }

  static DFA_DEVICE void compute(const Sm90E4m3Args& a, Rings rings, int group) {
    const KernelArgs& args = a.args;
    bool stored = false;  // an output may be on its way out of the stage before
    if (group == kGroups - 1) Base::pass_pingpong(group);
    for (;; rings.q.next()) {
      rings.q.wait_full();
      const Order order = Order::told(rings.order(), Base::lane());
      if (order.place == Order::kOver) break;
      const int row = order.row + group * kGroupRows;
      const Factors factors = factors_of(a, order, row);
      const TileRange tiles = Base::own_tiles(a, order.seq, row);
      const TileRange plain = plain_keys(args, order, row, factors);
      const Logits logits(args, order.seq, order.head, row + Base::warp_row());
      const unsigned q = rings.q.tile() + group * Base::kQGroupBytes;
      Softmax softmax(factors.unit());
      Output output;
#pragma unroll
      for (int n = 0; n < kValues; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) output[n][i] = 0;
      }
      softmax.start();
      float inverse[2], lse[2];
      if (tiles.begin < tiles.end) {
        Base::let_pass(rings, order.tiles.end - tiles.end, order.tiles.end, group);
        Scores scores;
        Weights weights;
        Part sums;
        StepFactors of_step;
        if constexpr (kBlocks) of_step.load(factors, a, tiles.end - 1);
        if constexpr (kBlocks) of_step.step();
        rings.k.wait_full();
        ptx::pin(scores);
        multiply_scores(scores, q, rings.k.tile());
        if (stored) Base::release_stored(rings.q, 1);
        ptx::wait_products<0>();
        ptx::pin(scores);
        rings.k.release(Base::lane());
        rings.k.next();
        prepare(scores, args, logits, order, plain, row, tiles.end - 1, factors, of_step);
        update_max(softmax, scores, of_step);
        exp2(softmax, scores, of_step);
        bool moved = false, under_way = false;
#pragma unroll 1
        for (int tile = tiles.end - 2; tile >= tiles.begin; --tile) {
          if constexpr (kBlocks) of_step.load(factors, a, tile);
          if (under_way) end_values(output, sums, weights, rings, of_step);
          under_way = true;
          if constexpr (kBlocks) of_step.step();
          round(weights, scores);
          if (moved) softmax.rescale(output);
          rings.k.wait_full();
          Base::wait_pingpong(group);
          ptx::pin(scores);
          ptx::pin(sums);
          ptx::pin(weights);
          multiply_scores(scores, q, rings.k.tile());
          rings.v.wait_full();
          multiply_values(sums, weights, rings.v.tile(), 0);
          Base::pass_pingpong(group);
          ptx::wait_products<1>();
          ptx::pin(scores);
          rings.k.release(Base::lane());
          rings.k.next();
          prepare(scores, args, logits, order, plain, row, tile, factors, of_step);
          moved = update_max(softmax, scores, of_step);
          add_parts(output, sums, weights, rings.v.tile(), of_step, [&](int part) {
            exp2(softmax, reinterpret_cast<float(&)[kWeighed][4]>(scores[part * kWeighed]),
                 of_step);
          });
        }
        if (under_way) end_values(output, sums, weights, rings, of_step);
        if constexpr (kBlocks) of_step.step();
        if (moved) softmax.rescale(output);
        rings.v.wait_full();
        round(weights, scores);
        ptx::pin(sums);
        ptx::pin(weights);
        multiply_values(sums, weights, rings.v.tile(), 0);
        add_parts(output, sums, weights, rings.v.tile(), of_step, [](int) {});
        softmax.finish(inverse, lse);
        end_values(output, sums, weights, rings, of_step);
        Base::let_pass(rings, tiles.begin - order.tiles.begin, tiles.begin, group);
      } else {
        if (stored) Base::release_stored(rings.q, 1);
        softmax.finish(inverse, lse);
        const int all = order.tiles.end - order.tiles.begin;
        Base::let_pass(rings, all, all - 1, group);
      }
      stored = true;
      if constexpr (!kBlocks) {
        inverse[0] *= factors.value;
        inverse[1] *= factors.value;
      }
      const typename Store::Rows rows{order.seq, order.head, order.row, group,
                                      row + Base::warp_row()};
      Store::lse(args, rows, lse);
      Store::output(a, rows, q, 0, output, inverse);
    }
    ptx::wait_stores_read();
    if (group == 0) Base::wait_pingpong(group);
  }
};

template <ForwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    sm90_e4m3_forward(const __grid_constant__ Sm90E4m3Args a) {
  run_sm90_forward<Sm90E4m3Forward<kConfig>>(a);
}

}  // namespace dfa
