#include "reference/packed.h"

#include <cstring>
#include <string>

#include "base/element.h"
#include "dfa/error.h"
#include "spec/bias.h"
#include "spec/descale.h"

namespace dfa {
namespace {

const void* at_row(const void* tensor, DType type, const Strides& strides, std::int64_t row) {
  return static_cast<const char*>(tensor) + row * strides.row * bytes_of(type);
}
void* at_row(void* tensor, DType type, const Strides& strides, std::int64_t row) {
  return static_cast<char*>(tensor) + row * strides.row * bytes_of(type);
}

// Where rows of sequence i of q begin: of dense ones by their number.
std::int64_t first_query(const Problem& p, const Sequences& s, std::int64_t i) {
  return s.cu_seqlens_q == nullptr ? i * p.sq : s.cu_seqlens_q[i];
}

std::int64_t length(const std::int32_t* begins, const std::int32_t* used, std::int64_t i) {
  return used == nullptr ? begins[i + 1] - begins[i] : used[i];
}

// Key j of a sequence is row (pad + j) % page of a page that the table names.
struct Pages {
  const Problem& p;
  const std::int32_t* table;
  std::int64_t pad, rows;

  // A tensor's rows, [rows, hk, dim]. Zeros where no query looks, as nothing may be there.
  std::vector<char> copied(const void* cache, const Strides& strides, std::int64_t dim,
                           std::int64_t queries) const {
    const auto bytes = static_cast<std::size_t>(dim * bytes_of(p.kv_dtype()));
    std::vector<char> dense(static_cast<std::size_t>(rows * p.hk) * bytes);
    for (std::int64_t j = 0; j < rows; ++j) {
      const std::int64_t first = rows - queries, chunk = p.mask.chunk;  // where queries begin
      if (p.mask.left >= 0 && j < first - p.mask.left) continue;
      if (chunk > 0 && first > 0 && j / chunk < first / chunk) continue;
      const std::int64_t at = pad + j, page = table[at / p.page];
      if (page < 0 || page >= p.total_k / p.page) {
        throw InvalidArgument("block_table names page " + std::to_string(page) + " of " +
                              std::to_string(p.total_k / p.page));
      }
      for (std::int64_t h = 0; h < p.hk; ++h) {
        const std::int64_t element =
            page * strides.batch + at % p.page * strides.row + h * strides.head;
        std::memcpy(dense.data() + static_cast<std::size_t>(j * p.hk + h) * bytes,
                    static_cast<const char*>(cache) + element * bytes_of(p.kv_dtype()), bytes);
      }
    }
    return dense;
  }
};

// Of a paged problem k and v of the sequence are copied out of their pages.
void take_pages(PackedSequence& one, const Problem& packed, const ForwardArgs& args,
                std::int64_t i) {
  const Sequences& s = args.sequences;
  Problem& p = one.problem;
  const std::int64_t pad = s.leftpad_k == nullptr ? 0 : s.leftpad_k[i];
  p.page = 0;
  p.sk = s.seqused_k[i] - pad;
  p.k_strides = {0, p.d, p.hk * p.d};
  p.v_strides = {0, p.dv, p.hk * p.dv};
  const Pages pages{packed, s.block_table + i * s.table_row, pad, p.sq == 0 ? 0 : p.sk};
  one.k = pages.copied(args.k, packed.k(), p.d, p.sq);
  one.v = pages.copied(args.v, packed.v(), p.dv, p.sq);
}

PackedSequence sequence(const Problem& packed, const Sequences& s, std::int64_t i) {
  PackedSequence one;
  one.problem = packed;
  Problem& p = one.problem;
  p.total_q = p.total_k = 0;
  p.lens_q = p.lens_k = {};
  p.b = 1;
  p.sq = s.cu_seqlens_q == nullptr && s.seqused_q == nullptr
             ? packed.sq
             : length(s.cu_seqlens_q, s.seqused_q, i);
  if (!packed.paged()) p.sk = length(s.cu_seqlens_k, s.seqused_k, i);
  p.q_strides = packed.q();
  p.k_strides = packed.k();
  p.v_strides = packed.v();
  p.o_strides = packed.o();
  one.first_row = first_query(packed, s, i);
  one.all_rows = packed.total_q;
  one.lse.resize(static_cast<std::size_t>(p.hq * p.sq));
  return one;
}

void require(const Problem& p, const Sequences& s) {
  if (p.paged()) {
    if (s.block_table != nullptr && s.seqused_k != nullptr) return;
    throw InvalidArgument("block_table and seqused_k say where paged keys lie; one is null");
  }
  if (s.cu_seqlens_q != nullptr && s.cu_seqlens_k != nullptr) return;
  throw InvalidArgument(
      "cu_seqlens_q and cu_seqlens_k say where packed sequences lie; one is null");
}

void read_lse(PackedSequence& one, const float* packed) {
  const std::int64_t rows = one.problem.sq;
  for (std::int64_t i = 0; i < one.problem.hq * rows; ++i) {
    one.lse[static_cast<std::size_t>(i)] =
        packed[i / rows * one.all_rows + one.first_row + i % rows];
  }
}

}  // namespace

void PackedSequence::write_lse(float* packed) const {
  if (packed == nullptr) return;
  const std::int64_t rows = problem.sq;
  for (std::int64_t i = 0; i < problem.hq * rows; ++i) {
    packed[i / rows * all_rows + first_row + i % rows] = lse[static_cast<std::size_t>(i)];
  }
}

std::deque<PackedSequence> sequences_of(const Problem& p, const ForwardArgs& args) {
  require(p, args.sequences);
  std::deque<PackedSequence> all;
  for (std::int64_t i = 0; i < p.b; ++i) {
    PackedSequence& one = all.emplace_back(sequence(p, args.sequences, i));
    if (p.paged()) take_pages(one, p, args, i);
    const std::int64_t q_row = one.first_row;
    const std::int64_t k_row = p.paged() ? 0 : args.sequences.cu_seqlens_k[i];
    one.forward = {.q = at_row(args.q, p.dtype, p.q(), q_row),
                   .k = p.paged() ? one.k.data() : at_row(args.k, p.dtype, p.k(), k_row),
                   .v = p.paged() ? one.v.data() : at_row(args.v, p.dtype, p.v(), k_row),
                   .o = at_row(args.o, p.o_dtype(), p.o(), q_row),
                   .lse = args.lse == nullptr ? nullptr : one.lse.data(),
                   .logits = logits_of_sequence(p, args.logits, i),
                   .descales = of_sequence(args.descales, i)};
    if (args.lse != nullptr) read_lse(one, args.lse);
  }
  return all;
}

std::deque<PackedSequence> sequences_of(const Problem& p, const BackwardArgs& args) {
  require(p, args.sequences);
  std::deque<PackedSequence> all;
  for (std::int64_t i = 0; i < p.b; ++i) {
    PackedSequence& one = all.emplace_back(sequence(p, args.sequences, i));
    const std::int64_t q_row = args.sequences.cu_seqlens_q[i];
    const std::int64_t k_row = args.sequences.cu_seqlens_k[i];
    one.backward = {.q = at_row(args.q, p.dtype, p.q(), q_row),
                    .k = at_row(args.k, p.dtype, p.k(), k_row),
                    .v = at_row(args.v, p.dtype, p.v(), k_row),
                    .o = at_row(args.o, p.o_dtype(), p.o(), q_row),
                    .lse = one.lse.data(),
                    .d_o = at_row(args.d_o, p.o_dtype(), p.o(), q_row),
                    .dq = at_row(args.dq, p.dtype, p.q(), q_row),
                    .dk = at_row(args.dk, p.dtype, p.k(), k_row),
                    .dv = at_row(args.dv, p.dtype, p.v(), k_row),
                    .logits = logits_of_sequence(p, args.logits, i),
                    .d_sinks = args.d_sinks,
                    .d_bias = args.d_bias,
                    .d_bias_strides = args.d_bias_strides};
    set_bias_gradient(p, i, one.backward);
    read_lse(one, args.lse);
  }
  return all;
}

}  // namespace dfa
