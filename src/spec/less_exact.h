#pragma once

#include <optional>

#include "dfa/problem.h"

namespace dfa {

// The element type in which a problem's products cost less and err more, and whose plan leaves the
// outputs in the problem's own: the scheduler's lever of precision, within the caller's error
// bound. tf32 reads the same tensors, e4m3 what quantising makes of them. None: there is no lever.
constexpr std::optional<DType> less_exact(const Problem& p) {
  if (p.dtype == DType::fp32) return DType::tf32;
  const bool stays = p.dtype == output_of(DType::e4m3) && !p.kv;  // caches have their own kernels
  if (stays && p.pass == Pass::forward) return DType::e4m3;
  return std::nullopt;
}

// Does a plan of type `products` read other tensors than a problem of type `stored` has?
constexpr bool quantises(DType stored, DType products) {
  return products == DType::e4m3 && stored != DType::e4m3;
}

}  // namespace dfa
