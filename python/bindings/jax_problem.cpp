#include "python/bindings/jax_problem.h"

#include <cstddef>
#include <functional>
#include <numeric>
#include <string>

namespace ffi = xla::ffi;

namespace dfa::python {
namespace {

DType type_of(const ffi::AnyBuffer& buffer, const std::string& name = "q") {
  switch (buffer.element_type()) {
    case ffi::DataType::F32: return DType::fp32;
    case ffi::DataType::F16: return DType::fp16;
    case ffi::DataType::BF16: return DType::bf16;
    case ffi::DataType::F8E4M3FN: return DType::e4m3;
    default:
      throw InvalidArgument("element type of " + name +
                            "; accepted: float32, float16, bfloat16, float8_e4m3fn");
  }
}

Problem begun(const Call& call, const ffi::AnyBuffer& q) {
  Problem p;
  p.pass = call.pass;
  p.dtype = type_of(q);
  p.mask = {call.left, call.right};
  p.scale = call.scale;
  p.deterministic = call.deterministic;
  return p;
}

// The most rows of one sequence are said by the caller, who has them from shapes.
Problem packed_problem_of(const Call& call, const ffi::AnyBuffer& q, const ffi::AnyBuffer& k,
                          const ffi::AnyBuffer& v, const Lengths& lengths, std::int64_t most_q,
                          std::int64_t most_k) {
  Problem p = begun(call, q);
  p.b = lengths.used_q.dimensions()[0];
  p.total_q = q.dimensions()[0];
  p.total_k = k.dimensions()[0];
  p.sq = most_q;
  p.sk = most_k;
  p.hq = q.dimensions()[1];
  p.hk = k.dimensions()[1];
  p.d = q.dimensions()[2];
  p.dv = v.dimensions()[2];
  return p;
}

}  // namespace

Problem problem_of(const Call& call, const ffi::AnyBuffer& q, const ffi::AnyBuffer& k,
                   const ffi::AnyBuffer& v) {
  const auto size = [](const ffi::AnyBuffer& buffer, std::size_t from_end) {
    return buffer.dimensions()[buffer.dimensions().size() - from_end];
  };
  Problem p = begun(call, q);
  p.hq = size(q, 3);
  p.hk = size(k, 3);
  p.sq = size(q, 2);
  p.sk = size(k, 2);
  p.d = size(q, 1);
  p.dv = size(v, 1);
  const auto leading = q.dimensions().first(q.dimensions().size() - 3);
  p.b = std::accumulate(leading.begin(), leading.end(), std::int64_t{1}, std::multiplies<>());
  return p;
}

Beside::Beside(std::string_view with, const ffi::RemainingArgs& operands) {
  const auto named = [words = " " + std::string(with) + " "](const std::string& name) {
    return words.find(" " + name + " ") != std::string::npos;
  };
  std::size_t at = 0;
  const auto next = [&]<typename Buffer>(std::optional<Buffer>& buffer) {
    const ffi::ErrorOr<Buffer> given = operands.get<Buffer>(at++);
    if (!given.has_value()) throw InvalidArgument(given.error().message());
    buffer = *given;
  };
  if (named("lengths")) {
    std::optional<Integers> cu_q, cu_k, used_q, used_k;
    next(cu_q), next(cu_k), next(used_q), next(used_k);
    lengths = Lengths{*cu_q, *cu_k, *used_q, *used_k};
  }
  if (named("alibi")) next(alibi);
  if (named("sinks")) next(sinks);
  if (named("bias")) next(bias);
  if (named("dropout")) next(dropout);
}

Logits Beside::logits(const Problem& problem) const {
  Logits logits;
  if (alibi) {
    logits.alibi_slopes = alibi->typed_data();
    logits.slopes_of_batch = problem.hq;
  }
  if (sinks) logits.sinks = sinks->typed_data();
  if (bias) logits.bias = bias->untyped_data();
  // Two 64-bit words, as the library has them: XLA's buffers are aligned by 16 bytes or more.
  if (dropout) logits.dropout = static_cast<const std::uint64_t*>(dropout->untyped_data());
  return logits;
}

Problem variant_of(Pass pass, const Options& options, const Beside& beside, const Any& q,
                   const Any& k, const Any& v) {
  const Call call{pass, options.left, options.right, options.scale, options.deterministic};
  Problem p = beside.lengths ? packed_problem_of(call, q, k, v, *beside.lengths, options.most_q,
                                                 options.most_k)
                             : problem_of(call, q, k, v);
  p.mask.chunk = options.chunk;
  p.mask.prefix = options.prefix;
  p.softcap = options.softcap;
  p.alibi = beside.alibi.has_value();
  p.sink = beside.sinks.has_value();
  p.dropout = options.dropout;
  p.mask_mod = options.mask_mod;
  p.score_mod = options.score_mod;
  if (!beside.bias) return p;
  const auto sizes = beside.bias->dimensions().last(2);
  p.bias = Bias{.of_batch = true,
                .of_head = true,
                .of_query = sizes[0] > 1,
                .of_key = sizes[1] > 1,
                .dtype = type_of(*beside.bias, "bias")};
  return p;
}

}  // namespace dfa::python
