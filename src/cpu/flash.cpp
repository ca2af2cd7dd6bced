#include "cpu/flash.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/aligned.h"
#include "cpu/arena.h"
#include "cpu/engine.h"
#include "cpu/head_start.h"
#include "cpu/pages.h"
#include "cpu/parallel.h"
#include "cpu/sinks.h"
#include "cpu/user_text_rows.h"
#include "spec/block_lists.h"
#include "spec/blocks.h"
#include "spec/descale.h"

namespace dfa::cpu {
namespace {

const Engine& engine_of(Target target) {
  switch (target) {
    case Target::cpu_portable: return portable_engine();
    case Target::cpu_avx2: return avx2_engine();
    case Target::cpu_avx512: return avx512_engine();
    case Target::cpu_amx: return amx_engine();
    case Target::cuda_sm75:
    case Target::cuda_sm80:
    case Target::cuda_sm90: break;
  }
  throw Unsupported("the CPU backend has no engine for this target");
}

HeadShape head_shape(const Problem& p, const Logits& logits = {}, const UserText* text = nullptr) {
  return {.sq = p.sq,
          .sk = p.sk,
          .d = static_cast<int>(p.d),
          .dv = static_cast<int>(p.dv),
          .mask = p.mask,
          .scale = static_cast<float>(p.softmax_scale()),
          .q_row = p.q().row,
          .k_row = p.k().row,
          .v_row = p.v().row,
          .o_row = p.o().row,
          .softcap = static_cast<float>(p.softcap),
          .alibi = p.alibi,
          .bias = p.bias.has_value(),
          .mask_text = !p.mask_mod.empty(),
          .score_text = !p.score_mod.empty(),
          .dropout = dropout_of(p, logits),
          .text = text};
}

// Of all batches' heads, those before this one.
std::uint32_t head_number(const Problem& p, const Logits& logits, std::int64_t b, std::int64_t h) {
  return static_cast<std::uint32_t>((logits.dropout_batch + b) * p.hq + h);
}

TextHead text_head(const Logits& logits, std::int64_t b, std::int64_t h) {
  return {logits.dropout_batch + b, h};
}

// Of the batch's first head.
const float* slopes_of(const Problem& p, const Logits& logits, std::int64_t b) {
  return p.alibi ? logits.alibi_slopes + b * logits.slopes_of_batch : nullptr;
}

// Of the batch's query heads from h on.
HeadBias bias_of(const Problem& p, const Logits& logits, std::int64_t b, std::int64_t h) {
  if (!p.bias) return {};
  const Strides& steps = logits.bias_strides;
  return {.values = static_cast<const std::byte*>(logits.bias) +
                    (b * steps.batch + h * steps.head) * bytes_of(p.bias->dtype),
          .type = p.bias->dtype,
          .head = steps.head,
          .row = steps.row,
          .key = p.bias->of_key ? 1 : 0};
}

HeadBias bias_of(const Problem& p, const BackwardArgs& args, std::int64_t b, std::int64_t h) {
  HeadBias bias = bias_of(p, args.logits, b, h);
  if (!p.bias || args.d_bias == nullptr) return bias;
  const Strides& steps = args.d_bias_strides;
  bias.gradients = args.d_bias + b * steps.batch + h * steps.head;
  bias.gradient_head = steps.head;
  bias.gradient_row = steps.row;
  return bias;
}

// The blocks of every query head of every batch, where the problem has lists.
class AllBlocks {
 public:
  AllBlocks(const Problem& p, const BlockLists& lists) {
    if (!p.blocks) return;
    require_block_lists(p, lists);
    const BlockMask& blocks = *p.blocks;
    const std::int64_t of_heads = blocks.of_head ? p.hq : 1;
    for (std::int64_t map = 0; map < block_maps(p); ++map) {
      states_.push_back(states_of_head(p, lists, map / of_heads, map % of_heads));
    }
    for (std::int64_t head = 0; head < p.b * p.hq; ++head) {
      const std::int64_t map =
          (blocks.of_batch ? head / p.hq * of_heads : 0) + (blocks.of_head ? head % p.hq : 0);
      heads_.push_back({.states = states_[static_cast<std::size_t>(map)].data(),
                        .block_q = blocks.block_q,
                        .block_k = blocks.block_k,
                        .columns = blocks.columns(p.sk),
                        .bits = lists.bits,
                        .row_words = blocks.row_words()});
    }
  }

  // From query head `head` of all batches on.
  const HeadBlocks* of(std::int64_t head) const {
    return heads_.empty() ? nullptr : &heads_[static_cast<std::size_t>(head)];
  }

 private:
  std::vector<std::vector<std::int32_t>> states_;
  std::vector<HeadBlocks> heads_;
};

// Of b batches, hk heads and key ranges those that may run beside each other: what a bias is one
// value for adds to one gradient, one after the other in order.
struct Beside {
  std::int64_t b, hk, ranges;

  Beside(const Problem& p, std::int64_t all_ranges, bool adds)
      : b(adds && !p.bias->of_batch ? 1 : p.b),
        hk(adds && !p.bias->of_head ? 1 : p.hk),
        ranges(adds && !p.bias->of_key ? 1 : all_ranges) {}

  std::int64_t count() const { return b * hk * ranges; }
};

std::int64_t blocks(std::int64_t count, std::int64_t block) { return (count + block - 1) / block; }

// Keys per packing task: enough work for one task, a multiple of block_k.
std::int64_t pack_step(int block) { return blocks(1024, block) * block; }

struct ForwardWorkspace {
  std::size_t packed_bytes, scratch_bytes;  // of one (b, hk), of one thread
  std::size_t k_bytes, v_bytes;             // that a packing task gathers from pages, of one thread
  std::byte* packed;
  std::byte* scratch;
  std::byte* gathered;
  std::size_t total;

  ForwardWorkspace(const Problem& p, const ForwardConfig& config, int threads, void* base) {
    const Engine& engine = engine_of(config.target);
    const HeadShape shape = head_shape(p);
    Arena arena(base);
    packed_bytes = align_up(engine.packed_kv_bytes(config, shape));
    scratch_bytes = align_up(engine.forward_scratch_bytes(config, shape));
    const std::int64_t rows = p.paged() ? std::min(p.sk, pack_step(config.block_k)) : 0;
    k_bytes = align_up(static_cast<std::size_t>(rows * p.d * bytes_of(p.dtype)));
    v_bytes = align_up(static_cast<std::size_t>(rows * p.dv * bytes_of(p.dtype)));
    packed = arena.take(packed_bytes * static_cast<std::size_t>(p.b * p.hk));
    scratch = arena.take(scratch_bytes * static_cast<std::size_t>(threads));
    gathered = arena.take((k_bytes + v_bytes) * static_cast<std::size_t>(threads));
    total = arena.used();
  }
};

// Query blocks of a head that make one tile. An engine with long tiles has a pipeline to fill and
// to drain in each: as many as leave every thread several tiles, for balance.
std::int64_t blocks_per_tile(const Engine& engine, std::int64_t heads, std::int64_t q_blocks,
                             int threads) {
  if (!engine.long_tiles) return 1;
  const std::int64_t tiles = threads == 1 ? heads : 8 * static_cast<std::int64_t>(threads);
  return std::clamp<std::int64_t>(heads * q_blocks / tiles, 1, q_blocks);
}

RowFactors factors_of(const Problem& p, const Descale& descale, std::int64_t b, std::int64_t hk) {
  if (p.dtype != DType::e4m3 || descale.values == nullptr) return {};
  return {descale.values + b * descale.batch + hk * descale.head, p.descale_rows, descale.block};
}

// Of a cache in e4m3 factors are those of scores and of the output: elements then are exact in the
// type that the engine reads, where products with factors would not be. A scale of 0 would make NaN
// of what a mask hides: it counts as the least number.
HeadShape with_factors(HeadShape shape, const Problem& p, const ForwardArgs& args, std::int64_t b,
                       std::int64_t hk) {
  if (!p.kv) return shape;
  constexpr float kLeast = std::numeric_limits<float>::min();
  shape.scale *= descale_of(args.descales.k, b, hk);
  if (std::abs(shape.scale) < kLeast) shape.scale = std::copysign(kLeast, shape.scale);
  shape.dropout.factor *= descale_of(args.descales.v, b, hk);
  return shape;
}

// Packs keys of a head whose rows lie in pages.
void pack_pages(const Engine& engine, const ForwardConfig& config, const Problem& p,
                const ForwardArgs& args, std::int64_t head, std::byte* k, std::byte* v,
                PackKv part) {
  const PageRows pages(p, args);
  pages.gather(args.k, p.k(), head, p.d, part.key_begin, part.key_end, k);
  pages.gather(args.v, p.v(), head, p.dv, part.key_begin, part.key_end, v);
  part.k = k;
  part.v = v;
  part.first = part.key_begin;
  HeadShape shape = head_shape(p);
  shape.k_row = p.d;
  shape.v_row = p.dv;
  engine.pack_kv(config, shape, part);
}

// Key ranges of one (b, hk) that run as separate tasks, each with its own share of dq. Ranges hold
// about the same number of visible pairs; there are as few as keep the threads busy, since each
// costs a dq of its own. A deterministic problem gets a number that no thread count moves.
std::vector<std::int64_t> key_ranges(const Problem& p, const BackwardConfig& config, int threads) {
  constexpr std::int64_t kMaxRanges = 16;
  const std::int64_t key_blocks = blocks(p.sk, config.block_k);
  const std::int64_t heads = p.b * p.hk;
  const std::int64_t workers = p.deterministic ? kMaxRanges : threads;
  std::int64_t count = 1;
  const auto balanced = [&] {
    return heads * count % workers == 0 || heads * count >= 4 * workers;
  };
  while (!balanced() && count < std::min(kMaxRanges, key_blocks)) ++count;

  std::vector<double> pairs(static_cast<std::size_t>(key_blocks) + 1, 0.0);
  for (std::int64_t block = 0; block < key_blocks; ++block) {
    const std::int64_t first = block * config.block_k;
    const std::int64_t last = std::min(first + config.block_k, p.sk) - 1;
    const double queries = static_cast<double>(std::max<std::int64_t>(
        0, p.mask.query_end(last, p.sq, p.sk) - p.mask.query_begin(first, p.sq, p.sk)));
    const auto i = static_cast<std::size_t>(block);
    pairs[i + 1] = pairs[i] + queries + 1e-3;  // an unseen block still has gradients to zero
  }
  std::vector<std::int64_t> bounds{0};
  for (std::int64_t range = 1; range < count; ++range) {
    const double share = pairs.back() * static_cast<double>(range) / static_cast<double>(count);
    const auto at = std::lower_bound(pairs.begin(), pairs.end(), share) - pairs.begin();
    const std::int64_t bound = std::min<std::int64_t>(at * config.block_k, p.sk);
    if (bound > bounds.back() && bound < p.sk) bounds.push_back(bound);
  }
  bounds.push_back(p.sk);
  return bounds;
}

struct BackwardWorkspace {
  std::size_t packed_kv_bytes, packed_q_bytes, dq_floats, scratch_bytes;
  std::vector<std::int64_t> ranges;
  std::byte* packed_kv;
  std::byte* packed_q;
  float* dq_sums;  // [b, hq, range, dq_floats]
  std::byte* scratch;
  std::size_t total;

  std::int64_t range_count() const { return static_cast<std::int64_t>(ranges.size()) - 1; }

  BackwardWorkspace(const Problem& p, const BackwardConfig& config, int threads, void* base)
      : ranges(key_ranges(p, config, threads)) {
    const Engine& engine = engine_of(config.target);
    const HeadShape shape = head_shape(p);
    const auto kv_heads = static_cast<std::size_t>(p.b * p.hk);
    const auto q_heads = static_cast<std::size_t>(p.b * p.hq);
    Arena arena(base);
    packed_kv_bytes = align_up(engine.backward_packed_kv_bytes(config, shape));
    packed_q_bytes = align_up(engine.packed_q_bytes(config, shape));
    dq_floats = align_up(engine.dq_sums_floats(config, shape) * sizeof(float)) / sizeof(float);
    scratch_bytes = align_up(engine.backward_scratch_bytes(config, shape));
    packed_kv = arena.take(packed_kv_bytes * kv_heads);
    packed_q = arena.take(packed_q_bytes * q_heads);
    const std::size_t shares = q_heads * static_cast<std::size_t>(range_count());
    dq_sums = reinterpret_cast<float*>(arena.take(shares * dq_floats * sizeof(float)));
    scratch = arena.take(scratch_bytes * static_cast<std::size_t>(threads));
    total = arena.used();
  }
};

}  // namespace

std::size_t flash_forward_workspace(const Problem& problem, const ForwardConfig& config,
                                    int threads) {
  return ForwardWorkspace(problem, config, threads, nullptr).total;
}

std::size_t flash_backward_workspace(const Problem& problem, const BackwardConfig& config,
                                     int threads) {
  return BackwardWorkspace(problem, config, threads, nullptr).total;
}

void flash_forward(const Problem& p, const ForwardConfig& config, int threads,
                   const ForwardArgs& args) {
  const Engine& engine = engine_of(config.target);
  const UserText text(p);
  const HeadShape shape = head_shape(p, args.logits, p.has_text() ? &text : nullptr);
  const ForwardWorkspace space(p, config, threads, args.workspace);
  const AllBlocks all_blocks(p, args.blocks);
  const auto packed_of = [&](std::int64_t b, std::int64_t hk) {
    return space.packed + space.packed_bytes * static_cast<std::size_t>(b * p.hk + hk);
  };

  const std::int64_t step = pack_step(config.block_k);
  const std::int64_t chunks = blocks(p.sk, step);
  parallel_for(threads, p.b * p.hk * chunks, [&](std::int64_t index, int slot) {
    const std::int64_t head = index / chunks, chunk = index % chunks;
    const std::int64_t b = head / p.hk, h = head % p.hk;
    const PackKv part{.k = head_start(args.k, p.k(), p.dtype, b, h),
                      .v = head_start(args.v, p.v(), p.dtype, b, h),
                      .packed = packed_of(b, h),
                      .key_begin = chunk * step,
                      .key_end = std::min((chunk + 1) * step, p.sk),
                      .k_factors = factors_of(p, args.descales.k, b, h),
                      .v_factors = factors_of(p, args.descales.v, b, h)};
    if (!p.paged()) return engine.pack_kv(config, shape, part);
    std::byte* const k =
        space.gathered + (space.k_bytes + space.v_bytes) * static_cast<std::size_t>(slot);
    pack_pages(engine, config, p, args, h, k, k + space.k_bytes, part);
  });

  // Within a head the last query rows come first: under a causal mask they see the most keys.
  const std::int64_t q_blocks = blocks(p.sq, config.block_q);
  const std::int64_t rows = config.block_q * blocks_per_tile(engine, p.b * p.hq, q_blocks, threads);
  const std::int64_t tiles = blocks(p.sq, rows);
  const std::int64_t group = p.hq / p.hk;
  parallel_for(threads, p.b * p.hq * tiles, [&](std::int64_t index, int slot) {
    const std::int64_t head = index / tiles, tile = tiles - 1 - index % tiles;
    const std::int64_t b = head / p.hq, h = head % p.hq;
    const std::int64_t q_begin = tile * rows;
    ForwardTile task = {
        .q = head_start(args.q, p.q(), p.dtype, b, h),
        .o = head_start(args.o, p.o(), p.o_dtype(), b, h),
        .lse = args.lse == nullptr ? nullptr : args.lse + head * p.sq,
        .packed = packed_of(b, h / group),
        .scratch = space.scratch + space.scratch_bytes * static_cast<std::size_t>(slot),
        .q_begin = q_begin,
        .q_end = std::min(q_begin + rows, p.sq)};
    task.bias = bias_of(p, args.logits, b, h);
    if (p.alibi) task.slope = slopes_of(p, args.logits, b)[h];
    if (p.sink) task.sink = args.logits.sinks[h];
    task.head = head_number(p, args.logits, b, h);
    if (p.blocks) task.blocks = *all_blocks.of(head);
    task.text = text_head(args.logits, b, h);
    task.q_factors = factors_of(p, args.descales.q, b, h / group);
    engine.forward_tile(config, with_factors(shape, p, args, b, h / group), task);
  });
}

void flash_backward(const Problem& p, const BackwardConfig& config, int threads,
                    const BackwardArgs& args) {
  const Engine& engine = engine_of(config.target);
  const UserText text(p);
  const HeadShape shape = head_shape(p, args.logits, p.has_text() ? &text : nullptr);
  const BackwardWorkspace space(p, config, threads, args.workspace);
  const AllBlocks all_blocks(p, args.blocks);
  const std::int64_t group = p.hq / p.hk, ranges = space.range_count();
  const auto kv_of = [&](std::int64_t head) {
    return space.packed_kv + space.packed_kv_bytes * static_cast<std::size_t>(head);
  };
  const auto q_of = [&](std::int64_t head) {
    return space.packed_q + space.packed_q_bytes * static_cast<std::size_t>(head);
  };
  const auto dq_of = [&](std::int64_t head, std::int64_t range) {
    return space.dq_sums + space.dq_floats * static_cast<std::size_t>(head * ranges + range);
  };

  const std::int64_t k_step = pack_step(config.block_k), k_chunks = blocks(p.sk, k_step);
  parallel_for(threads, p.b * p.hk * k_chunks, [&](std::int64_t index, int) {
    const std::int64_t head = index / k_chunks, chunk = index % k_chunks;
    engine.backward_pack_kv(config, shape,
                            {.k = head_start(args.k, p.k(), p.dtype, head / p.hk, head % p.hk),
                             .v = head_start(args.v, p.v(), p.dtype, head / p.hk, head % p.hk),
                             .packed = kv_of(head),
                             .key_begin = chunk * k_step,
                             .key_end = std::min((chunk + 1) * k_step, p.sk)});
  });

  const std::int64_t q_step = pack_step(config.block_q), q_chunks = blocks(p.sq, q_step);
  parallel_for(threads, p.b * p.hq * q_chunks, [&](std::int64_t index, int) {
    const std::int64_t head = index / q_chunks, chunk = index % q_chunks;
    const std::int64_t b = head / p.hq, h = head % p.hq;
    engine.pack_q(config, shape,
                  {.q = head_start(args.q, p.q(), p.dtype, b, h),
                   .o = head_start(args.o, p.o(), p.dtype, b, h),
                   .d_o = head_start(args.d_o, p.o(), p.dtype, b, h),
                   .lse = args.lse + head * p.sq,
                   .packed = q_of(head),
                   .q_begin = chunk * q_step,
                   .q_end = std::min((chunk + 1) * q_step, p.sq)});
  });

  const auto keys_of = [&](std::int64_t b, std::int64_t h, std::int64_t range, int slot) {
    const std::int64_t head = b * p.hk + h, first_q_head = b * p.hq + h * group;
    engine.backward_tile(
        config, shape,
        {.packed_kv = kv_of(head),
         .packed_q = q_of(first_q_head),
         .packed_q_stride = space.packed_q_bytes,
         .dq_sums = dq_of(first_q_head, range),
         .dq_sums_stride = space.dq_floats * static_cast<std::size_t>(ranges),
         .group = static_cast<int>(group),
         .dk = head_start(args.dk, p.k(), p.dtype, b, h),
         .dv = head_start(args.dv, p.v(), p.dtype, b, h),
         .scratch = space.scratch + space.scratch_bytes * static_cast<std::size_t>(slot),
         .key_begin = space.ranges[static_cast<std::size_t>(range)],
         .key_end = space.ranges[static_cast<std::size_t>(range) + 1],
         .slopes = p.alibi ? slopes_of(p, args.logits, b) + h * group : nullptr,
         .bias = bias_of(p, args, b, h * group),
         .head = head_number(p, args.logits, b, h * group),
         .blocks = all_blocks.of(first_q_head),
         .text = text_head(args.logits, b, h * group)});
  };
  const Beside beside(p, ranges, p.bias && args.d_bias != nullptr);
  parallel_for(threads, beside.count(), [&](std::int64_t index, int slot) {
    const std::int64_t first_b = index / beside.ranges / beside.hk;
    const std::int64_t first_h = index / beside.ranges % beside.hk;
    for (std::int64_t b = first_b; b < p.b; b += beside.b) {
      for (std::int64_t h = first_h; h < p.hk; h += beside.hk) {
        for (std::int64_t r = index % beside.ranges; r < ranges; r += beside.ranges) {
          keys_of(b, h, r, slot);
        }
      }
    }
  });

  parallel_for(threads, p.b * p.hq * q_chunks, [&](std::int64_t index, int) {
    const std::int64_t head = index / q_chunks, chunk = index % q_chunks;
    engine.finish_dq(config, shape,
                     {.dq_sums = dq_of(head, 0),
                      .split_stride = space.dq_floats,
                      .splits = static_cast<int>(ranges),
                      .dq = head_start(args.dq, p.q(), p.dtype, head / p.hq, head % p.hq),
                      .q_begin = chunk * q_step,
                      .q_end = std::min((chunk + 1) * q_step, p.sq)});
  });
  if (p.sink) add_sink_gradients(p, threads, args);
}

}  // namespace dfa::cpu
