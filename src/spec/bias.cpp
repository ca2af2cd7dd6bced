#include "spec/bias.h"

#include <vector>

#include "spec/parse.h"

namespace dfa {
namespace {

[[noreturn]] void wrong_bias(std::string_view text) {
  throw InvalidArgument(
      "problem: 'bias(" + std::string(text) +
      ")' is not of the form bias(b|1,h|1[,q|1,k|1][,DTYPE]), DTYPE fp32, fp16 or "
      "bf16");
}

bool varies(std::string_view part, std::string_view name, std::string_view text) {
  if (part != name && part != "1") wrong_bias(text);
  return part == name;
}

}  // namespace

Bias bias_of(std::string_view text, DType usual) {
  std::vector<std::string_view> parts = split(text, ",");
  Bias bias{.dtype = usual};
  for (const DType type : {DType::fp32, DType::fp16, DType::bf16}) {
    if (parts.empty() || parts.back() != name_of(type)) continue;
    bias.dtype = type;
    parts.pop_back();
    break;
  }
  if (parts.size() != 2 && parts.size() != 4) wrong_bias(text);
  bias.of_batch = varies(parts[0], "b", text);
  bias.of_head = varies(parts[1], "h", text);
  if (parts.size() == 2) return bias;
  bias.of_query = varies(parts[2], "q", text);
  bias.of_key = varies(parts[3], "k", text);
  return bias;
}

std::string bias_text(const Bias& bias, DType usual) {
  std::string text =
      std::string(" bias(") + (bias.of_batch ? "b" : "1") + (bias.of_head ? ",h" : ",1");
  if (!bias.of_query || !bias.of_key) {
    text += std::string(bias.of_query ? ",q" : ",1") + (bias.of_key ? ",k" : ",1");
  }
  if (bias.dtype != usual) text += std::string(",") + name_of(bias.dtype);
  return text + ")";
}

DType usual_bias_dtype(const Problem& p) {
  return p.dtype == DType::fp16 || p.dtype == DType::bf16 ? p.dtype : DType::fp32;
}

BiasSizes bias_sizes(const Problem& p) {
  const Bias bias = p.bias.value();
  return {.b = bias.of_batch ? p.b : 1,
          .hq = bias.of_head ? p.hq : 1,
          .sq = bias.of_query ? p.sq : 1,
          .sk = bias.of_key ? p.sk : 1};
}

Strides bias_strides(const Problem& p, const Strides& given) {
  const Bias bias = p.bias.value();
  const BiasSizes n = bias_sizes(p);
  const Strides all = given == Strides{} ? Strides{n.hq * n.sq * n.sk, n.sq * n.sk, n.sk} : given;
  return {.batch = bias.of_batch ? all.batch : 0,
          .head = bias.of_head ? all.head : 0,
          .row = bias.of_query ? all.row : 0};
}

Logits with_bias_strides(const Problem& p, Logits logits) {
  if (p.bias) logits.bias_strides = bias_strides(p, logits.bias_strides);
  return logits;
}

Logits logits_of_sequence(const Problem& packed, Logits logits, std::int64_t sequence) {
  logits.dropout_batch += sequence;
  if (logits.alibi_slopes != nullptr) logits.alibi_slopes += sequence * logits.slopes_of_batch;
  if (!packed.bias) return logits;
  logits.bias_strides = bias_strides(packed, logits.bias_strides);
  const std::int64_t elements = sequence * logits.bias_strides.batch;
  logits.bias = static_cast<const char*>(logits.bias) + elements * bytes_of(packed.bias->dtype);
  return logits;
}

void set_bias_gradient(const Problem& packed, std::int64_t sequence, BackwardArgs& one) {
  if (!packed.bias || one.d_bias == nullptr) return;
  one.d_bias_strides = bias_strides(packed, one.d_bias_strides);
  one.d_bias += sequence * one.d_bias_strides.batch;
}

}  // namespace dfa
