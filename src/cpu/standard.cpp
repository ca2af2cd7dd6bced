#include "cpu/standard.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "cpu/head_start.h"
#include "cpu/parallel.h"
#include "cpu/standard_operands.h"
#include "dfa/error.h"
#include "spec/passes.h"

namespace dfa::cpu {
namespace {

constexpr int kRows = 64;  // rows of a task

using Kind = PackedTensor::Kind;

// Floats from one row of a matrix to the next: whole cache lines. An odd number of them, which
// keeps a column of a power-of-two matrix out of few cache sets, won nothing at 1024 and 2048 keys.
std::int64_t row_floats(std::int64_t sk) { return (sk + 15) / 16 * 16; }

std::size_t matrix_bytes(const Problem& p) {
  return static_cast<std::size_t>(p.b * p.hq * p.sq * row_floats(p.sk)) * sizeof(float);
}

// A task's rows, widened: the left operand of a product.
struct Staging {
  float *rows, *sums;
};

struct Matrices {
  const Problem& p;
  const MatrixKernels& kernels;
  std::int64_t heads, kv_heads;
  std::int64_t heads_before = 0;  // of batches that are not here: of dropout
  int ld;                         // floats from one row of S to the next
  float* first = nullptr;         // S, then P: [b, hq, sq, ld]
  float* second = nullptr;        // dP, then dS
  float* staged;                  // of every thread
  std::int64_t staged_floats;
  PackedTensor k_columns, v_steps;                      // forward
  PackedTensor v_columns, k_steps, q_steps, d_o_steps;  // backward
  std::size_t total;

  // stored: the place of S and P is the caller's, and so of no part of the workspace.
  Matrices(const Problem& problem, Target target, int threads, bool backward, bool stored,
           void* base)
      : p(problem),
        kernels(matrix_of(target)),
        heads(p.b * p.hq),
        kv_heads(p.b * p.hk),
        ld(static_cast<int>(row_floats(p.sk))) {
    Arena arena(base);
    const std::size_t bytes = matrix_bytes(p);
    const int d = static_cast<int>(p.d), dv = static_cast<int>(p.dv);
    if (!stored) first = reinterpret_cast<float*>(arena.take(bytes));
    if (!backward || !stored) k_columns = {kernels, Kind::columns, kv_heads, p.sk, d, arena};
    if (!backward) {
      v_steps = {kernels, Kind::steps, kv_heads, p.sk, dv, arena};
    } else {
      second = reinterpret_cast<float*>(arena.take(bytes));
      v_columns = {kernels, Kind::columns, kv_heads, p.sk, dv, arena};
      k_steps = {kernels, Kind::steps, kv_heads, p.sk, d, arena};
      q_steps = {kernels, Kind::steps, heads, p.sq, d, arena};
      d_o_steps = {kernels, Kind::steps, heads, p.sq, dv, arena};
    }
    staged_floats = kRows * row_floats(std::max(p.d, p.dv));  // whole vectors of any engine
    staged = reinterpret_cast<float*>(
        arena.take(2 * sizeof(float) * static_cast<std::size_t>(staged_floats * threads)));
    total = arena.used();
  }

  Staging staging(int slot) const {
    float* rows = staged + 2 * staged_floats * slot;
    return {rows, rows + staged_floats};
  }
  std::int64_t kv_head(std::int64_t head) const {
    const std::int64_t group = p.hq / p.hk;
    return head / p.hq * p.hk + head % p.hq / group;
  }
  std::uint32_t head_number(std::int64_t head) const {
    return static_cast<std::uint32_t>(heads_before + head);
  }
  float* row(float* matrix, std::int64_t head, std::int64_t i) const {
    return matrix + (head * p.sq + i) * ld;
  }
};

// One tensor of the caller, addressed by head.
struct Tensor {
  const void* data;
  Strides strides;
  std::int64_t heads_per_batch;
  DType type;
  int dim;

  const std::byte* head(std::int64_t head) const {
    return static_cast<const std::byte*>(
        head_start(data, strides, type, head / heads_per_batch, head % heads_per_batch));
  }
  Rows rows(std::int64_t at, std::int64_t begin, int count) const {
    const std::ptrdiff_t row_bytes = strides.row * bytes_of(type);
    return {type, head(at) + begin * row_bytes, row_bytes, count, dim};
  }
};

void pack(int threads, PackedTensor& packed, const Tensor& tensor, std::int64_t heads) {
  parallel_for(threads, heads * packed.blocks(), [&](std::int64_t index, int) {
    const std::int64_t head = index / packed.blocks();
    packed.pack(head, index % packed.blocks(), tensor.type, tensor.head(head), tensor.strides.row);
  });
}

// Calls task(head, first row, rows, staging) for every block of rows of every head.
template <typename Task>
void for_row_blocks(int threads, const Matrices& m, std::int64_t heads, std::int64_t rows,
                    Task&& task) {
  const std::int64_t per_head = (rows + kRows - 1) / kRows;
  parallel_for(threads, heads * per_head, [&](std::int64_t index, int slot) {
    const std::int64_t begin = index % per_head * kRows;
    task(index / per_head, begin, static_cast<int>(std::min<std::int64_t>(kRows, rows - begin)),
         m.staging(slot));
  });
}

// Multiplies a row of P or dP by 0 where dropout drops, by its factor elsewhere.
void drop(const Matrices& m, const DropoutDraw& draw, std::int64_t head, std::int64_t i,
          float* row) {
  constexpr int kKeys = 32;
  for (int key = 0; key < m.ld; key += kKeys) {
    float kept[kKeys];
    m.kernels.kept(draw, m.head_number(head), i, key, kept);
    for (int j = 0; j < std::min(kKeys, m.ld - key); ++j) row[key + j] *= kept[j] * draw.factor;
  }
}

// matrix = factor · rows(left) · columnsᵀ: S = scale q k^T, dP = do v^T.
void outer_products(int threads, const Matrices& m, const Tensor& left, float factor,
                    const PackedTensor& columns, float* matrix) {
  for_row_blocks(threads, m, m.heads, m.p.sq,
                 [&](std::int64_t head, std::int64_t begin, int count, const Staging& staging) {
                   const int dim = left.dim;
                   m.kernels.widen(left.rows(head, begin, count), count, dim, staging.rows);
                   for (int i = 0; i < count * dim; ++i) staging.rows[i] *= factor;
                   for (std::int64_t block = 0; block < columns.blocks(); ++block) {
                     const RightOperand right = columns.operand(m.kv_head(head), block);
                     m.kernels.product(
                         {staging.rows, dim, 1}, right,
                         {m.row(matrix, head, begin) + block * PackedTensor::kBlock, m.ld, false},
                         count, right.cols, dim);
                   }
                 });
}

// S becomes the P that dropout leaves, row by row; lse comes out. Rows that see no key become zero.
void softmax_rows(int threads, const Matrices& m, const DropoutDraw& draw, float* lse) {
  const Problem& p = m.p;
  for_row_blocks(threads, m, m.heads, p.sq,
                 [&](std::int64_t head, std::int64_t first, int count, const Staging&) {
                   for (std::int64_t i = first; i < first + count; ++i) {
                     const auto begin = static_cast<int>(p.mask.key_begin(i, p.sq, p.sk));
                     const auto end = static_cast<int>(p.mask.key_end(i, p.sq, p.sk));
                     float* row = m.row(m.first, head, i);
                     float value = -std::numeric_limits<float>::infinity();
                     if (begin < end) {
                       const SoftmaxRow sums = m.kernels.softmax(row, begin, end, m.ld);
                       value = sums.maximum + std::log(sums.sum);
                       if (draw.drops()) drop(m, draw, head, i, row);
                     } else {
                       std::fill_n(row, m.ld, 0.0f);
                     }
                     if (lse != nullptr) lse[head * p.sq + i] = value;
                   }
                 });
}

// out rows = factor · matrix · steps: o = P v, dq = scale dS k.
void combine_keys(int threads, const Matrices& m, float* matrix, const PackedTensor& steps,
                  float factor, const Tensor& out) {
  for_row_blocks(
      threads, m, m.heads, m.p.sq,
      [&](std::int64_t head, std::int64_t begin, int count, const Staging& staging) {
        const int dim = steps.padded_dim();
        for (std::int64_t block = 0; block < steps.blocks(); ++block) {
          m.kernels.product({m.row(matrix, head, begin) + block * PackedTensor::kBlock, m.ld, 1},
                            steps.operand(m.kv_head(head), block), {staging.sums, dim, block > 0},
                            count, dim, steps.rows_of(block));
        }
        const Rows rows = out.rows(head, begin, count);
        for (int i = 0; i < count; ++i) {
          float* row = staging.sums + i * dim;
          for (int x = 0; x < out.dim; ++x) row[x] *= factor;
          m.kernels.narrow_row(out.type, const_cast<std::byte*>(rows.data) + i * rows.row_bytes,
                               out.dim, row);
        }
      });
}

// out rows = factor · matrixᵀ · steps, summed over the group's query heads in order: dv = Pᵀ do,
// dk = scale dSᵀ q.
void combine_queries(int threads, const Matrices& m, float* matrix, const PackedTensor& steps,
                     float factor, const Tensor& out) {
  const std::int64_t group = m.p.hq / m.p.hk;
  for_row_blocks(
      threads, m, m.kv_heads, m.p.sk,
      [&](std::int64_t kv_head, std::int64_t begin, int count, const Staging& staging) {
        const int dim = steps.padded_dim();
        bool add = false;
        for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          for (std::int64_t block = 0; block < steps.blocks(); ++block) {
            m.kernels.product({m.row(matrix, head, block * PackedTensor::kBlock) + begin, 1, m.ld},
                              steps.operand(head, block), {staging.sums, dim, add}, count, dim,
                              steps.rows_of(block));
            add = true;
          }
        }
        const Rows rows = out.rows(kv_head, begin, count);
        for (int j = 0; j < count; ++j) {
          float* row = staging.sums + j * dim;
          for (int x = 0; x < out.dim; ++x) row[x] *= factor;
          m.kernels.narrow_row(out.type, const_cast<std::byte*>(rows.data) + j * rows.row_bytes,
                               out.dim, row);
        }
      });
}

Tensor query_tensor(const Problem& p, const void* data, const Strides& strides, std::int64_t dim) {
  return {data, strides, p.hq, p.dtype, static_cast<int>(dim)};
}
Tensor key_tensor(const Problem& p, const void* data, const Strides& strides, std::int64_t dim) {
  return {data, strides, p.hk, p.dtype, static_cast<int>(dim)};
}

// S becomes P from the known lse, unless P is there already, and dP becomes
// dS = P ∘ (dP − rowsum(do ∘ o)). What dropout drops is 0 in dP before, and in P behind it.
void gradient_rows(int threads, const Matrices& m, const Tensor& o, const Tensor& d_o,
                   const DropoutDraw& draw, const float* lse, bool stored) {
  const Problem& p = m.p;
  for_row_blocks(
      threads, m, m.heads, p.sq,
      [&](std::int64_t head, std::int64_t first, int count, const Staging& staging) {
        m.kernels.widen(o.rows(head, first, count), count, o.dim, staging.rows);
        m.kernels.widen(d_o.rows(head, first, count), count, o.dim, staging.sums);
        for (std::int64_t i = first; i < first + count; ++i) {
          const auto begin = static_cast<int>(p.mask.key_begin(i, p.sq, p.sk));
          const auto end = static_cast<int>(p.mask.key_end(i, p.sq, p.sk));
          float* probabilities = m.row(m.first, head, i);
          float* gradient = m.row(m.second, head, i);
          if (begin >= end) {
            if (!stored) std::fill_n(probabilities, m.ld, 0.0f);
            std::fill_n(gradient, m.ld, 0.0f);
            continue;
          }
          if (!stored) {
            m.kernels.probabilities(probabilities, begin, end, m.ld, lse[head * p.sq + i]);
          }
          std::fill(gradient, gradient + begin, 0.0f);
          std::fill(gradient + end, gradient + m.ld, 0.0f);
          const std::int64_t row = (i - first) * o.dim;
          const float delta = m.kernels.dot(staging.sums + row, staging.rows + row, o.dim);
          if (draw.drops()) drop(m, draw, head, i, gradient);
          m.kernels.score_gradient(probabilities, gradient, m.ld, delta);
          if (draw.drops()) drop(m, draw, head, i, probabilities);
        }
      });
}

// Sizes that neither the kernels' ints nor a count of bytes could hold.
void require_countable(const Problem& p) {
  constexpr std::int64_t kMaxKeys = (1LL << 31) - 64, kMaxScores = 1LL << 48;
  if (p.sk <= kMaxKeys && p.b * p.hq * p.sq <= kMaxScores / row_floats(p.sk)) return;
  throw Unsupported("standard attention: S of '" + to_line(p) +
                    "' is too large; it may have 2^31 - 64 columns and 2^48 elements");
}

}  // namespace

std::size_t standard_workspace_bytes(const Problem& p, Target target, int threads, bool stored) {
  require_countable(p);
  const std::size_t forward =
      has_forward(p) ? Matrices(p, target, threads, false, stored, nullptr).total : 0;
  const std::size_t backward =
      has_backward(p) ? Matrices(p, target, threads, true, stored, nullptr).total : 0;
  return std::max(forward, backward);
}

std::size_t standard_probabilities_bytes(const Problem& p) {
  require_countable(p);
  return matrix_bytes(p);
}

void standard_forward(const Problem& p, Target target, int threads, const ForwardArgs& args) {
  const bool stored = args.probabilities != nullptr;
  Matrices m(p, target, threads, false, stored, args.workspace);
  if (stored) m.first = static_cast<float*>(args.probabilities);
  m.heads_before = args.logits.dropout_batch * p.hq;
  pack(threads, m.k_columns, key_tensor(p, args.k, p.k(), p.d), m.kv_heads);
  pack(threads, m.v_steps, key_tensor(p, args.v, p.v(), p.dv), m.kv_heads);
  outer_products(threads, m, query_tensor(p, args.q, p.q(), p.d),
                 static_cast<float>(p.softmax_scale()), m.k_columns, m.first);
  softmax_rows(threads, m, dropout_of(p, args.logits), args.lse);
  combine_keys(threads, m, m.first, m.v_steps, 1.0f, query_tensor(p, args.o, p.o(), p.dv));
}

void standard_backward(const Problem& p, Target target, int threads, const BackwardArgs& args) {
  const bool stored = args.probabilities != nullptr;
  Matrices m(p, target, threads, true, stored, args.workspace);
  if (stored) m.first = static_cast<float*>(const_cast<void*>(args.probabilities));  // read only
  m.heads_before = args.logits.dropout_batch * p.hq;
  const auto scale = static_cast<float>(p.softmax_scale());
  const Tensor q = query_tensor(p, args.q, p.q(), p.d);
  const Tensor k = key_tensor(p, args.k, p.k(), p.d);
  const Tensor v = key_tensor(p, args.v, p.v(), p.dv);
  const Tensor d_o = query_tensor(p, args.d_o, p.o(), p.dv);
  if (!stored) pack(threads, m.k_columns, k, m.kv_heads);
  pack(threads, m.v_columns, v, m.kv_heads);
  pack(threads, m.k_steps, k, m.kv_heads);
  pack(threads, m.q_steps, q, m.heads);
  pack(threads, m.d_o_steps, d_o, m.heads);
  if (!stored) outer_products(threads, m, q, scale, m.k_columns, m.first);
  outer_products(threads, m, d_o, 1.0f, m.v_columns, m.second);
  gradient_rows(threads, m, query_tensor(p, args.o, p.o(), p.dv), d_o, dropout_of(p, args.logits),
                args.lse, stored);
  combine_queries(threads, m, m.first, m.d_o_steps, 1.0f, key_tensor(p, args.dv, p.v(), p.dv));
  combine_queries(threads, m, m.second, m.q_steps, scale, key_tensor(p, args.dk, p.k(), p.d));
  combine_keys(threads, m, m.second, m.k_steps, scale, query_tensor(p, args.dq, p.q(), p.d));
}

}  // namespace dfa::cpu
