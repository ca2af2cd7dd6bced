#pragma once

// Before anything of the kernels:
#include "emulated/hopper_backward.h"
// and then:
#include "emulated/sm90_any_backward.h"

// What Hopper's own backward with dropout, biases and logits is tested with on a processor.
namespace dfa::emulated {

using enum DqAccumulation;

constexpr auto kBf16 = DType::bf16, kFp16 = DType::fp16;

// Products that read a tile before it was waited for.
constexpr Timing kLateCopies{.late_copies = true};

// What a configuration has beside plain scores.
constexpr int kDropout = 8, kBias = 16;

constexpr BackwardConfig config(DType element, int dim, int variants, int cluster = 1,
                                DqAccumulation dq = serialized, bool persistent = false) {
  BackwardConfig with = with_logits(BackwardConfig{.target = Target::cuda_sm90,
                                                   .element = element,
                                                   .head_dim = dim,
                                                   .value_dim = dim,
                                                   .block_q = 64,
                                                   .block_k = 64,
                                                   .warps = 8,
                                                   .stages = 2,
                                                   .ctas = 1,
                                                   .dq = dq,
                                                   .cluster = cluster,
                                                   .persistent = persistent},
                                    variants);
  with.dropout = (variants & kDropout) != 0;
  with.bias = (variants & kBias) != 0;
  return with;
}

template <BackwardConfig kConfig>
void expect_right(Tensors asked_for, const std::string& line) {
  const bool whole = asked_for.p.bias && asked_for.p.bias->of_query && asked_for.p.bias->of_key;
  if (!whole) asked_for.d_bias.clear();  // a GPU has no such gradient
  expect_gradients<kConfig>(with_forward(std::move(asked_for)), line,
                            {kLateCopies, kLate, kCrossed}, &sm90_any_backward<kConfig>);
}
template <BackwardConfig kConfig>
void expect_right(const std::string& line) {
  expect_right<kConfig>(Tensors(line, 5), line);
}

template <BackwardConfig kConfig>
std::string said(const char* bias = "bias(1,h)") {
  return " d" + std::to_string(kConfig.head_dim) +
         said_of((kConfig.softcap ? kSoftcap : 0) | (kConfig.alibi ? kAlibi : 0)) +
         (kConfig.dropout ? " dropout(0.3,7)" : "") + (kConfig.bias ? std::string(" ") + bias : "");
}

// Edges of tiles, every mask, rows and keys that see nothing, heads that share keys, either sign.
template <BackwardConfig kConfig>
void expect_right_everywhere() {
  const std::string bwd = std::string("bwd ") + name_of(kConfig.element) + " ";
  for (const char* rest :
       {"b1 h1 sq63 sk65", "causal b1 hq4 hk2 sq100 sk150", "causal b2 h1 sq200 sk90",
        "b1 h2 sq130 sk129 window(90,20)", "b1 h1 sq70 sk200 scale(-1)", "b1 h1 s1",
        "causal b1 hq4 hk2 s193 layout(bshd)", "b1 h1 sq300 sk70 window(9,9)"}) {
    expect_right<kConfig>(bwd + rest + said<kConfig>());
  }
}

// The same of fewer problems.
template <BackwardConfig kConfig>
void expect_right_at_edges() {
  const std::string bwd = std::string("bwd ") + name_of(kConfig.element) + " ";
  for (const char* rest : {"causal b1 hq2 hk1 sq130 sk190", "b2 h1 sq200 sk65 window(60,40)"}) {
    expect_right<kConfig>(bwd + rest + said<kConfig>());
  }
}

constexpr BackwardConfig packed(BackwardConfig with) {
  with.varlen = true;
  return with;
}

constexpr BackwardConfig ranges(BackwardConfig with) {
  with.ranges = true;
  return with;
}

}  // namespace dfa::emulated
