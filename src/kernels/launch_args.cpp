#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/launch.h"
#include "kernels/launch_parts.h"
#include "kernels/softmax/tile_mask.h"
#include "kernels/variant/dropout_args.h"
#include "plan/schedule.h"
#include "plan/steps.h"
#include "spec/bias.h"
#include "spec/dropout.h"

// What kernels are passed.
namespace dfa {
namespace {

using namespace launch_parts;

constexpr int kHeadsAtOnce = 64;

int window_side(long long side) {
  constexpr long long kLongest = 1LL << 29;
  return static_cast<int>(std::min(side, kLongest));
}

void size_bias(BiasArgs& bias, const Problem& p) {
  const BiasSizes sizes = bias_sizes(p);
  bias.type = p.bias->dtype;
  bias.key = p.bias->of_key ? 1 : 0;
  bias.batches = static_cast<int>(sizes.b);
  bias.heads = static_cast<int>(sizes.hq);
}

}  // namespace

KernelArgs kernel_args(const Problem& p) {
  constexpr double kLog2E = 1.4426950408889634;
  KernelArgs args{};
  args.q_strides = strides_of(p.q());
  args.k_strides = strides_of(p.k());
  args.v_strides = strides_of(p.v());
  args.o_strides = strides_of(p.o());
  args.b = static_cast<int>(p.b);
  args.hq = static_cast<int>(p.hq);
  args.hk = static_cast<int>(p.hk);
  args.sq = static_cast<int>(p.sq);
  args.sk = static_cast<int>(p.sk);
  args.d = static_cast<int>(p.d);
  args.d_v = static_cast<int>(p.dv);
  args.padded_sq = static_cast<int>(padded_rows(p));
  alternate(args, kHeadsAtOnce);
  args.left = window_side(p.mask.left);
  args.right = window_side(p.mask.right);
  args.chunk = p.mask.prefix > 0 ? -window_side(p.mask.prefix) : window_side(p.mask.chunk);
  if (args.chunk > 0) args.chunk_inverse = MultipliedChunks::inverse_of(args.chunk);
  args.scale = static_cast<float>(p.softmax_scale());
  args.scale_log2 = static_cast<float>(p.softmax_scale() * kLog2E);
  args.magnitude_log2 = std::abs(args.scale_log2);
  if (p.bias) size_bias(args.logits.bias, p);
  if (p.dropout > 0) {
    args.paged = DropoutArgs{nullptr, p.dropout_seed, dropout_of(p).kept, 0}.as_pages();
  }
  if (p.softcap == 0) return args;
  args.logits.softcap = static_cast<float>(p.softcap);
  args.logits.inverse_softcap = static_cast<float>(1 / p.softcap);
  return args;
}

namespace {

template <typename Config>
KernelArgs with_lists(KernelArgs args, const Problem& p, const Config& c) {
  if (!p.packed()) return args;
  PackedArgs& packed = args.packed;
  packed.total_q = static_cast<int>(p.total_q);
  packed.total_k = static_cast<int>(p.total_k);
  packed.q_tile_rows = q_list_rows(c);
  packed.k_tile_rows = k_list_rows(c);
  packed.most_q_tiles = static_cast<int>(most_tiles(p, p.total_q, packed.q_tile_rows));
  if (packed.k_tile_rows > 0) {
    packed.most_k_tiles = static_cast<int>(most_tiles(p, p.total_k, packed.k_tile_rows));
  }
  packed.gap_slices = gap_slices(p);
  packed.element_bytes = bytes_of(p.o_dtype());
  packed.padded_rows = static_cast<int>(padded_rows(p));
  if (!p.paged()) return args;
  args.paged.page = static_cast<int>(p.page);
  args.paged.pages = static_cast<int>(p.k_batches());
  return args;
}

// Where the lists are and what they are made from. Returns what is left of the workspace.
char* point_lists(PackedArgs& packed, const Sequences& sequences, void* workspace) {
  auto* const begin = static_cast<char*>(workspace);
  if (packed.total_q == 0) return begin;
  packed.cu_seqlens_q = sequences.cu_seqlens_q;
  packed.cu_seqlens_k = sequences.cu_seqlens_k;
  packed.seqused_q = sequences.seqused_q;
  packed.seqused_k = sequences.seqused_k;
  packed.tile_counts = reinterpret_cast<int*>(begin);
  packed.q_tiles = reinterpret_cast<SequenceTile*>(begin + kTileCountBytes);
  packed.k_tiles = packed.q_tiles + packed.most_q_tiles;
  const auto end = reinterpret_cast<char*>(packed.k_tiles + packed.most_k_tiles) - begin;
  return begin + aligned(static_cast<std::size_t>(end));
}

// Of ExponentLogits: the cap in exponents of 2, and what makes a score the argument of tanh, or
// what a text made of a score and its scale.
void fold_logits(LogitArgs& args, const Problem& p) {
  constexpr double kLog2E = 1.4426950408889634, kMost = std::numeric_limits<float>::max();
  if (p.softcap == 0) return;
  args.softcap = static_cast<float>(p.softcap * kLog2E);
  const double scale = p.has_text() ? 1 : p.softmax_scale();
  args.inverse_softcap = static_cast<float>(std::clamp(scale / p.softcap, -kMost, kMost));
}

void point_pages(PagedArgs& args, const Sequences& sequences) {
  args.block_table = sequences.block_table;
  args.table_row = sequences.table_row;
  args.leftpad_k = sequences.leftpad_k;
}

// Problems without pages have DropoutArgs in the place of PagedArgs.
void point_pages_or_dropout(KernelArgs& args, const Sequences& sequences, const Logits& logits) {
  if (sequences.block_table != nullptr) return point_pages(args.paged, sequences);
  static_assert(sizeof(std::uint64_t) == sizeof(unsigned long long));
  DropoutArgs dropout = DropoutArgs::of(args);
  dropout.state = reinterpret_cast<const unsigned long long*>(logits.dropout);
  dropout.first_batch = static_cast<int>(logits.dropout_batch);
  args.paged = dropout.as_pages();
}

void point_logits(LogitArgs& args, const Logits& logits) {
  args.alibi_slopes = logits.alibi_slopes;
  args.slopes_of_batch = logits.slopes_of_batch;
  args.sinks = logits.sinks;
  args.bias.values = logits.bias;
  args.bias.strides = strides_of(logits.bias_strides);
}

}  // namespace

KernelArgs kernel_args(const Problem& p, const ForwardConfig& c) {
  KernelArgs args = with_lists(kernel_args(p), p, c);
  if (c.target == Target::cuda_sm90) fold_logits(args.logits, p);
  return args;
}

KernelArgs kernel_args(const Problem& p, const BackwardConfig& c) {
  KernelArgs args = with_lists(kernel_args(p), p, c);
  if (c.target == Target::cuda_sm90) fold_logits(args.logits, p);
  return args;
}

BlockArgs block_args(const Problem& p) {
  const BlockMask& mask = p.blocks.value();
  BlockArgs blocks{};
  blocks.block_q = static_cast<int>(mask.block_q);
  blocks.block_k = static_cast<int>(mask.block_k);
  blocks.rows = static_cast<int>(mask.rows(p.sq));
  blocks.columns = static_cast<int>(mask.columns(p.sk));
  blocks.row_words = static_cast<int>(mask.row_words());
  blocks.head_maps = mask.of_head ? 1 : 0;
  blocks.batch_maps = mask.of_batch ? static_cast<int>(mask.of_head ? p.hq : 1) : 0;
  return blocks;
}

BlockArgs with_pointers(BlockArgs args, const BlockLists& lists) {
  args.kv_counts = lists.kv_counts;
  args.kv_indices = lists.kv_indices;
  args.kv_bitmaps = lists.kv_bitmaps;
  args.q_counts = lists.q_counts;
  args.q_indices = lists.q_indices;
  args.q_bitmaps = lists.q_bitmaps;
  args.bits = lists.bits;
  args.bitmaps = static_cast<int>(std::min<std::int64_t>(lists.bitmaps, 1 << 30));
  return args;
}

BlockKernelArgs block_kernel_args(const Problem& p, const KernelArgs& args) {
  return {args, block_args(p)};
}

BlockKernelArgs with_pointers(BlockKernelArgs args, const ForwardArgs& pointers) {
  return {with_pointers(static_cast<const KernelArgs&>(args), pointers),
          with_pointers(args.blocks, pointers.blocks)};
}

BlockKernelArgs with_pointers(BlockKernelArgs args, const BackwardArgs& pointers) {
  return {with_pointers(static_cast<const KernelArgs&>(args), pointers),
          with_pointers(args.blocks, pointers.blocks)};
}

BlockOrderArgs block_order_args(const Problem& p, const ForwardConfig& c, void* workspace) {
  auto* const begin = static_cast<char*>(workspace);
  return {.heads = static_cast<int>(p.b * p.hq),
          .tiles = static_cast<int>(tiles_of(p.sq, c.block_q)),
          .section = fitting_heads(p, c),
          .tile_rows = c.block_q,
          .taken = reinterpret_cast<unsigned*>(begin),
          .work_tiles = reinterpret_cast<int*>(begin + kTileCountBytes)};
}

void alternate(KernelArgs& args, int head_swizzle) {
  args.head_swizzle = head_swizzle;
  args.tail_heads = args.b * args.hk / head_swizzle * head_swizzle;
}

KernelArgs with_pointers(KernelArgs args, const ForwardArgs& pointers) {
  args.q = pointers.q;
  args.k = pointers.k;
  args.v = pointers.v;
  args.o = pointers.o;
  args.lse = pointers.lse;
  point_logits(args.logits, pointers.logits);
  point_lists(args.packed, pointers.sequences, pointers.workspace);
  point_pages_or_dropout(args, pointers.sequences, pointers.logits);
  return args;
}

KernelArgs with_pointers(KernelArgs args, const BackwardArgs& pointers) {
  args.q = pointers.q;
  args.k = pointers.k;
  args.v = pointers.v;
  args.o = const_cast<void*>(pointers.o);
  args.lse = const_cast<float*>(pointers.lse);
  args.d_o = pointers.d_o;
  point_logits(args.logits, pointers.logits);
  point_pages_or_dropout(args, pointers.sequences, pointers.logits);
  args.logits.d_sinks = pointers.d_sinks;
  args.logits.bias.gradients = pointers.d_bias;
  args.logits.bias.gradient_strides = strides_of(pointers.d_bias_strides);
  args.dq = pointers.dq;
  args.dk = pointers.dk;
  args.dv = pointers.dv;
  args.lse_log2 =
      reinterpret_cast<float*>(point_lists(args.packed, pointers.sequences, pointers.workspace));
  const long long rows = args.packed.total_q > 0 ? 1LL * args.hq * args.packed.padded_rows
                                                 : 1LL * args.b * args.hq * args.padded_sq;
  args.delta = args.lse_log2 + rows;
  args.dq_sums = args.delta + rows;
  args.dq_semaphores = reinterpret_cast<unsigned*>(args.dq_sums + rows * gpu_head_dim(args.d));
  const std::size_t counters = sizeof(unsigned) * static_cast<std::size_t>(args.dq_semaphore_count);
  args.part_sums =
      reinterpret_cast<float*>(reinterpret_cast<char*>(args.dq_semaphores) + aligned(counters));
  return args;
}

}  // namespace dfa
