#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "dfa/problem.h"

namespace dfa::cpu {

// First element of head h of batch b. Constness follows the pointer's.
template <typename Pointer>
Pointer head_start(Pointer base, const Strides& strides, DType type, std::int64_t b,
                   std::int64_t h) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const std::byte,
                                  std::byte>;
  return static_cast<Byte*>(base) + (b * strides.batch + h * strides.head) * bytes_of(type);
}

}  // namespace dfa::cpu
