#pragma once

#include "spec/config.h"

namespace dfa {

// Is it a configuration of Hopper's kernels in fp32, whose products are those of bf16 planes?
template <typename Config>
constexpr bool is_fp32x3(const Config& c) {
  return c.target == Target::cuda_sm90 && c.element == DType::fp32;
}

// Names them for every pass of a problem.
inline constexpr const char* kFp32x3Text = "target=cuda_sm90";

}  // namespace dfa
