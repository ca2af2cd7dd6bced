#pragma once

#include "spec/forward_config.h"

namespace dfa {

// Is it a configuration of Hopper's forward in e4m3?
constexpr bool is_e4m3(const ForwardConfig& c) {
  return c.target == Target::cuda_sm90 && c.element == DType::e4m3;
}

}  // namespace dfa
