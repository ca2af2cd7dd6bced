#pragma once

#include "spec/forward_config.h"

namespace dfa {

// Is it a configuration of Hopper's forward in e4m3?
constexpr bool is_e4m3(const ForwardConfig& c) {
  return c.target == Target::cuda_sm90 && c.element == DType::e4m3;
}

// One that takes v as pack_values leaves it.
constexpr bool takes_packed_values(const ForwardConfig& c) {
  return is_e4m3(c) && !c.transpose_values;
}

}  // namespace dfa
