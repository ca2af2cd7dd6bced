#pragma once

#include <cstddef>

#include "base/aligned.h"

namespace dfa::cpu {

// Hands out consecutive parts of one allocation; with a null base it only adds up their sizes.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<std::byte*>(base)) {}

  std::byte* take(std::size_t bytes) {
    std::byte* part = base_ == nullptr ? nullptr : base_ + used_;
    used_ += align_up(bytes);
    return part;
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

}  // namespace dfa::cpu
