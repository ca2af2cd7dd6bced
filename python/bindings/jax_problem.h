#pragma once

#include <xla/ffi/api/ffi.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "dfa/attention.h"

// Problems of what XLA hands over. What a variant has beside q, k and v are operands behind the
// others, which `with` names, in this order: lengths (four), alibi [b, hq], sinks [1, hq], bias
// [b, hq, sq or 1, sk or 1], dropout uint32 [4]: seed and offset, low halves first. Nothing here
// reads their values, so that both platforms run the same code.
namespace dfa::python {

using Any = xla::ffi::AnyBuffer;
using Floats = xla::ffi::Buffer<xla::ffi::F32>;
using Integers = xla::ffi::Buffer<xla::ffi::S32>;

// What every call says.
struct Call {
  Pass pass;
  std::int64_t left;
  std::int64_t right;
  double scale;
  bool deterministic;
};

// What a variant's call says: attributes, all of them.
struct Options {
  std::int64_t left, right;
  double scale;
  bool deterministic;
  double softcap;
  std::int64_t chunk, prefix;
  double dropout;
  std::string_view mask_mod, score_mod;
  std::string_view with;
  std::int64_t most_q, most_k;  // rows of one sequence, where there are lengths
  bool learned;                 // is the bias's gradient wanted?
};

struct Lengths {
  Integers cu_q, cu_k, used_q, used_k;

  Sequences sequences() const {
    return {.cu_seqlens_q = cu_q.typed_data(),
            .cu_seqlens_k = cu_k.typed_data(),
            .seqused_q = used_q.typed_data(),
            .seqused_k = used_k.typed_data()};
  }
};

// What a variant has beside its tensors.
struct Beside {
  std::optional<Lengths> lengths{};
  std::optional<Floats> alibi{}, sinks{};
  std::optional<Any> bias{};
  std::optional<xla::ffi::Buffer<xla::ffi::U32>> dropout{};

  Beside(std::string_view with, const xla::ffi::RemainingArgs& operands);

  Sequences sequences() const { return lengths ? lengths->sequences() : Sequences{}; }

  Logits logits(const Problem& problem) const;
};

Problem problem_of(const Call& call, const Any& q, const Any& k, const Any& v);
Problem variant_of(Pass pass, const Options& options, const Beside& beside, const Any& q,
                   const Any& k, const Any& v);

}  // namespace dfa::python

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    dfa::python::Options, StructMember<std::int64_t>("left"), StructMember<std::int64_t>("right"),
    StructMember<double>("scale"), StructMember<bool>("deterministic"),
    StructMember<double>("softcap"), StructMember<std::int64_t>("chunk"),
    StructMember<std::int64_t>("prefix"), StructMember<double>("dropout"),
    StructMember<std::string_view>("mask_mod"), StructMember<std::string_view>("score_mod"),
    StructMember<std::string_view>("with"), StructMember<std::int64_t>("most_q"),
    StructMember<std::int64_t>("most_k"), StructMember<bool>("learned"));
