#include "reference/packed.h"

#include "base/element.h"
#include "dfa/error.h"

namespace dfa {
namespace {

const void* at_row(const void* tensor, const Problem& p, const Strides& strides, std::int64_t row) {
  return static_cast<const char*>(tensor) + row * strides.row * bytes_of(p.dtype);
}
void* at_row(void* tensor, const Problem& p, const Strides& strides, std::int64_t row) {
  return static_cast<char*>(tensor) + row * strides.row * bytes_of(p.dtype);
}

std::int64_t length(const std::int32_t* begins, const std::int32_t* used, std::int64_t i) {
  return used == nullptr ? begins[i + 1] - begins[i] : used[i];
}

PackedSequence sequence(const Problem& packed, const Sequences& s, std::int64_t i) {
  PackedSequence one;
  one.problem = packed;
  Problem& p = one.problem;
  p.total_q = p.total_k = 0;
  p.lens_q = p.lens_k = {};
  p.b = 1;
  p.sq = length(s.cu_seqlens_q, s.seqused_q, i);
  p.sk = length(s.cu_seqlens_k, s.seqused_k, i);
  p.q_strides = packed.q();
  p.k_strides = packed.k();
  p.v_strides = packed.v();
  p.o_strides = packed.o();
  one.first_row = s.cu_seqlens_q[i];
  one.all_rows = packed.total_q;
  one.lse.resize(static_cast<std::size_t>(p.hq * p.sq));
  return one;
}

void require(const Sequences& s) {
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
  require(args.sequences);
  std::deque<PackedSequence> all;
  for (std::int64_t i = 0; i < p.b; ++i) {
    PackedSequence& one = all.emplace_back(sequence(p, args.sequences, i));
    const std::int64_t q_row = args.sequences.cu_seqlens_q[i];
    const std::int64_t k_row = args.sequences.cu_seqlens_k[i];
    one.forward = {.q = at_row(args.q, p, p.q(), q_row),
                   .k = at_row(args.k, p, p.k(), k_row),
                   .v = at_row(args.v, p, p.v(), k_row),
                   .o = at_row(args.o, p, p.o(), q_row),
                   .lse = args.lse == nullptr ? nullptr : one.lse.data(),
                   .logits = logits_of_sequence(p, args.logits, i)};
    if (args.lse != nullptr) read_lse(one, args.lse);
  }
  return all;
}

std::deque<PackedSequence> sequences_of(const Problem& p, const BackwardArgs& args) {
  require(args.sequences);
  std::deque<PackedSequence> all;
  for (std::int64_t i = 0; i < p.b; ++i) {
    PackedSequence& one = all.emplace_back(sequence(p, args.sequences, i));
    const std::int64_t q_row = args.sequences.cu_seqlens_q[i];
    const std::int64_t k_row = args.sequences.cu_seqlens_k[i];
    one.backward = {.q = at_row(args.q, p, p.q(), q_row),
                    .k = at_row(args.k, p, p.k(), k_row),
                    .v = at_row(args.v, p, p.v(), k_row),
                    .o = at_row(args.o, p, p.o(), q_row),
                    .lse = one.lse.data(),
                    .d_o = at_row(args.d_o, p, p.o(), q_row),
                    .dq = at_row(args.dq, p, p.q(), q_row),
                    .dk = at_row(args.dk, p, p.k(), k_row),
                    .dv = at_row(args.dv, p, p.v(), k_row),
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
