#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "dfa/attention.h"

// The bias of logits: its text in a problem line, and where its values lie.
namespace dfa {

// Of "b|1,h|1[,q|1,k|1][,DTYPE]"; usual: the type where none is said. Throws InvalidArgument.
Bias bias_of(std::string_view text, DType usual);
std::string bias_text(const Bias& bias, DType usual);  // " bias(…)", the shortest

// The type of biases where a line says none: the problem's of 16 bits, else fp32.
DType usual_bias_dtype(const Problem& problem);

// Sizes of the problem's bias, 1 where it is one value for all; elements of all of it.
struct BiasSizes {
  std::int64_t b, hq, sq, sk;

  std::int64_t elements() const { return b * hq * sq * sk; }
};
BiasSizes bias_sizes(const Problem& problem);

// Steps from one batch, head and row to the next, 0 where that is the same value; those of a dense
// tensor where `given` are all 0.
Strides bias_strides(const Problem& problem, const Strides& given);

// Logits with the strides of their bias as bias_strides() has them, the second for one sequence of
// packed ones.
Logits with_bias_strides(const Problem& problem, Logits logits);
Logits logits_of_sequence(const Problem& packed, Logits logits, std::int64_t sequence);

// Of `one`, the arguments of one sequence of packed ones: where its part of d_bias lies.
void set_bias_gradient(const Problem& packed, std::int64_t sequence, BackwardArgs& one);

}  // namespace dfa
