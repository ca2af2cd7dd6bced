#pragma once

#include <optional>

#include "dfa/problem.h"
#include "spec/expression.h"

namespace dfa::cpu {

// The parsed texts of a problem, for the time of a call.
class UserText {
 public:
  explicit UserText(const Problem& problem);

  const Expression& mask() const { return *mask_; }
  const Expression& score() const { return *score_; }
  std::int32_t sq() const { return sq_; }
  std::int32_t sk() const { return sk_; }

 private:
  std::optional<Expression> mask_, score_;
  std::int32_t sq_, sk_;
};

}  // namespace dfa::cpu
