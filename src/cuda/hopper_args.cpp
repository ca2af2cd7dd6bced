#include "cuda/hopper_args.h"

#include <algorithm>

#include "cuda/hopper_tensor.h"
#include "kernels/softmax/tile_mask.h"
#include "kernels/tile_balance.h"
#include "plan/prices_backward.h"
#include "plan/schedule.h"
#include "plan/steps.h"
#include "plan/validate_gpu.h"
#include "spec/e4m3.h"

namespace dfa::cuda {
namespace {

// The planes of a tensor as one of bf16 with three times the batch.
gpu::TiledTensor planes_of(const Problem& p, std::int64_t heads, std::int64_t rows,
                           std::int64_t columns, int box_rows) {
  const Strides dense{.batch = heads * rows * columns, .head = rows * columns, .row = columns};
  return hopper_tensor(DType::bf16, kPlanes * p.b, dense, heads, rows, columns, box_rows);
}

// Of q, o and their gradients, and of k, v and theirs: dense, or of packed sequences.
gpu::TiledTensor q_tensor(const Problem& p, DType element, const Strides& s, std::int64_t columns,
                          int box_rows, int packed_heads = 1) {
  if (p.packed()) {
    return sequences_hopper_tensor(element, p.b, s, p.hq, p.total_q, columns, box_rows,
                                   packed_heads);
  }
  return packed_hopper_tensor(element, p.b, s, p.hq, p.sq, columns, box_rows, packed_heads);
}
gpu::TiledTensor k_tensor(const Problem& p, const Strides& s, std::int64_t columns, int box_rows) {
  if (p.packed()) {
    return sequences_hopper_tensor(p.dtype, p.b, s, p.hk, p.total_k, columns, box_rows);
  }
  return hopper_tensor(p.dtype, p.b, s, p.hk, p.sk, columns, box_rows);
}

// Of a forward: also of keys in pages.
gpu::TiledTensor forward_k_tensor(const Problem& p, const ForwardConfig& c, const Strides& s,
                                  std::int64_t columns) {
  if (!p.paged()) return k_tensor(p, s, columns, c.block_k);
  return paged_hopper_tensor(p.dtype, p.k_batches(), s, p.hk, p.page, columns, page_box_rows(p, c));
}

// In e4m3 what pack_values makes of v, a tile's columns as rows of as many keys.
gpu::TiledTensor v_tensor(const Problem& p, const ForwardConfig& c) {
  if (!takes_packed_values(c)) return forward_k_tensor(p, c, p.v(), p.dv);
  const std::int64_t rows = value_tiles_of_head(p, c) * c.value_dim, head = rows * c.block_k;
  return hopper_tensor(p.dtype, p.batches(), {.batch = p.hk * head, .head = head, .row = c.block_k},
                       p.hk, rows, c.block_k, c.value_dim);
}

// Lengths beyond those that kernels count are of one block.
DescaleBlocks descale_blocks(const Problem& p, const ForwardConfig& c, const Descales& descales) {
  if (!c.descale_blocks) return {};
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const std::int64_t tiles = (p.descale_rows + c.block_k - 1) / c.block_k;
  DescaleBlocks all{.q = descales.q.block,
                    .k = descales.k.block,
                    .v = descales.v.block,
                    .queries = static_cast<int>(std::min(p.descale_rows, kMost)),
                    .tiles = static_cast<int>(std::min(tiles, kMost)),
                    .tiles_inverse = 0};
  all.tiles_inverse = MultipliedChunks::inverse_of(all.tiles);
  return all;
}

// Keys that are copied at once by a backward.
int key_box_rows(const BackwardConfig& c) { return c.masked ? kGroupRows : c.block_k; }

}  // namespace

HopperForwardArgs::HopperForwardArgs(const Problem& p, const ForwardConfig& c)
    : args_(kernel_args(p, c)),
      q_(q_tensor(p, p.dtype, p.q(), p.d, kQBoxRows, c.query_rows())),
      k_(forward_k_tensor(p, c, p.k(), p.d)),
      v_(v_tensor(p, c)),
      o_(q_tensor(p, p.o_dtype(), p.o(), p.dv, kOBoxRows, std::min(c.query_rows(), kOBoxRows))),
      problem_(p),
      config_(c) {}

TileGrid HopperForwardArgs::tile_grid(int blocks) const {
  if (config_.counted_tiles()) return {};  // kernels make them of the lengths
  const std::lock_guard lock(mutex_);
  const auto known = tile_grid_.find(blocks);
  if (known != tile_grid_.end()) return known->second;
  return tile_grid_.emplace(blocks, balanced_tile_grid(problem_, config_, blocks)).first->second;
}

Sm90ForwardArgs HopperForwardArgs::with(const ForwardArgs& pointers, int blocks) const {
  Sm90ForwardArgs all;
  all.args = with_pointers(args_, pointers);
  encode(q_, pointers.q, all.q);
  encode(k_, pointers.k, all.k);
  const bool packed = takes_packed_values(config_);
  encode(v_,
         packed ? static_cast<const char*>(pointers.workspace) + value_tiles_at(problem_, config_)
                : pointers.v,
         all.v);
  encode(o_, pointers.o, all.o);
  all.tile_grid = tile_grid(blocks);
  all.partials = {};
  if (config_.num_splits > 0 && !config_.split_kv) {
    const SplitPartials partials = split_partials(problem_, config_);
    auto* const output = static_cast<float*>(pointers.workspace);
    all.partials = {.work_tiles = split_kv(problem_, config_).work_tiles,
                    .of_head = partials.of_head,
                    .rows = partials.rows,
                    .o = output,
                    .lse = output + partials.output_floats};
  }
  return all;
}

Sm90E4m3Args HopperForwardArgs::e4m3_with(const ForwardArgs& pointers, int blocks) const {
  const auto of = [](const Descale& d) { return DescaleArgs{d.values, d.batch, d.head}; };
  const Descales& descales = pointers.descales;
  return {with(pointers, blocks), of(descales.q), of(descales.k), of(descales.v),
          descale_blocks(problem_, config_, descales)};
}

Sm90PagedForwardArgs HopperForwardArgs::paged_with(const ForwardArgs& pointers, int blocks) const {
  if (!config_.paged) return {with(pointers, blocks), 0, 0, 0, 0, 0, 0};
  const auto step = [&](const Strides& s) {
    return static_cast<int>(page_step(problem_.k_batches(), s));
  };
  // A third warp has a quarter of many boxes, where one of k and one of v have three.
  const int box_rows = page_box_rows(problem_, config_), boxes = config_.block_k / box_rows;
  return {with(pointers, blocks),
          box_rows,
          boxes,
          boxes - boxes / 4,
          step(problem_.k()),
          step(problem_.v()),
          MultipliedChunks::inverse_of(static_cast<int>(problem_.page))};
}

Sm90SplitForwardArgs HopperForwardArgs::split_with(const ForwardArgs& pointers, int blocks) const {
  const SplitKvForwardArgs lists = split_lists(pointers);
  Sm90SplitForwardArgs all{paged_with(pointers, blocks), lists.splits};
  all.args = lists.args;
  all.partials = {.work_tiles = 0,
                  .of_head = 0,
                  .rows = lists.splits.rows,
                  .o = lists.splits.o,
                  .lse = lists.splits.lse};
  return all;
}

Sm90BlocksForwardArgs HopperForwardArgs::blocks_with(const ForwardArgs& pointers,
                                                     int blocks) const {
  return {with(pointers, blocks), with_pointers(block_args(problem_), pointers.blocks),
          block_order_args(problem_, config_, pointers.workspace)};
}

HopperFp32x3Args::HopperFp32x3Args(const Problem& p, const ForwardConfig& c)
    : q_(planes_of(p, p.hq, p.sq, p.d, kGroupRows)),
      k_(planes_of(p, p.hk, p.sk, p.d, c.block_k)),
      v_(planes_of(p, p.hk, p.sk, p.dv, c.block_k)),
      args_(kernel_args(p)) {}

Sm90Fp32x3Args HopperFp32x3Args::with(const ForwardArgs& pointers,
                                      const Fp32x3PlanesArgs& split) const {
  Sm90Fp32x3Args all;
  all.args = with_pointers(args_, pointers);
  encode(q_, split.tensors[0].planes, all.q);
  encode(k_, split.tensors[1].planes, all.k);
  encode(v_, split.tensors[2].planes, all.v);
  return all;
}

HopperBackwardArgs::HopperBackwardArgs(const Problem& p, const BackwardConfig& c, int sms)
    : args_(kernel_args(p, c)),
      unfolded_(kernel_args(p).logits),
      q_(q_tensor(p, p.dtype, p.q(), p.d, c.block_q)),
      k_(k_tensor(p, p.k(), p.d, key_box_rows(c))),
      v_(k_tensor(p, p.v(), p.dv, key_box_rows(c))),
      d_o_(q_tensor(p, p.o_dtype(), p.o(), p.dv, c.block_q)),
      dk_(k_tensor(p, p.k(), p.d, kGradientBoxRows)),
      dv_(k_tensor(p, p.v(), p.dv, kGradientBoxRows)) {
  if (c.varlen) {
    args_.dq_semaphore_count = dq_semaphore_count(p, c);
    args_.zeroed_ahead = 2 * sms / c.cluster;  // two rounds: the next ones may begin early
    return;
  }
  if (p.blocks) blocks_ = block_args(p);
  args_.head_swizzle = select_head_swizzle(p, c);
  args_.tail_heads = select_tail_heads(p, c);
  args_.dq_semaphore_count = dq_semaphore_count(p, c);
  args_.zeroed_ahead = select_heads_zeroed_ahead(p, c);
  args_.persistent_clusters = select_persistent_clusters(p, c, sms);
  args_.parts = select_split_q(p, c, sms);
  if (c.dq_fused()) args_.rounding = rounding_order(p, c);
}

Sm90BackwardArgs HopperBackwardArgs::with(const BackwardArgs& pointers) const {
  Sm90BackwardArgs all;
  all.args = with_pointers(args_, pointers);
  encode(q_, pointers.q, all.q);
  encode(k_, pointers.k, all.k);
  encode(v_, pointers.v, all.v);
  encode(d_o_, pointers.d_o, all.d_o);
  encode(dk_, pointers.dk, all.dk);
  encode(dv_, pointers.dv, all.dv);
  return all;
}

KernelArgs HopperBackwardArgs::bias_gradient(KernelArgs args) const {
  args.logits.softcap = unfolded_.softcap;
  args.logits.inverse_softcap = unfolded_.inverse_softcap;
  return args;
}

Sm90BlocksBackwardArgs HopperBackwardArgs::blocks_with(const BackwardArgs& pointers) const {
  return {with(pointers), with_pointers(blocks_, pointers.blocks)};
}

HopperFp32x3BackwardArgs::HopperFp32x3BackwardArgs(const Problem& p, const BackwardConfig& c)
    : rows_(planes_of(p, p.hq, p.sq, p.dv, kGroupRows)),
      q_(planes_of(p, p.hq, p.sq, p.d, c.block_q)),
      k_(planes_of(p, p.hk, p.sk, p.d, c.block_k)),
      v_(planes_of(p, p.hk, p.sk, p.dv, c.block_k)),
      d_o_(planes_of(p, p.hq, p.sq, p.dv, c.block_q)),
      args_(kernel_args(p)) {
  alternate(args_, prices::kSm90HeadsAtOnce);
}

Sm90Fp32x3DeltaArgs HopperFp32x3BackwardArgs::delta(const BackwardArgs& pointers,
                                                    const BackwardPlanes& split) const {
  Sm90Fp32x3DeltaArgs all;
  all.args = with_pointers(args_, pointers);
  encode(rows_, split.rows.tensors[0].planes, all.o);
  encode(rows_, split.rows.tensors[1].planes, all.d_o);
  return all;
}

Sm90Fp32x3BackwardArgs HopperFp32x3BackwardArgs::with(const BackwardArgs& pointers,
                                                      const BackwardPlanes& split) const {
  Sm90Fp32x3BackwardArgs all;
  all.args = with_pointers(args_, pointers);
  encode(q_, split.inputs.tensors[0].planes, all.q);
  encode(k_, split.inputs.tensors[1].planes, all.k);
  encode(v_, split.inputs.tensors[2].planes, all.v);
  encode(d_o_, split.rows.tensors[1].planes, all.d_o);
  return all;
}

}  // namespace dfa::cuda
