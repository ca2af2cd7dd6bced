#pragma once

namespace dfa {

// One of two types.
template <bool kFirst, typename First, typename Second>
struct EitherOf {
  using Type = First;
};
template <typename First, typename Second>
struct EitherOf<false, First, Second> {
  using Type = Second;
};
template <bool kFirst, typename First, typename Second>
using Either = typename EitherOf<kFirst, First, Second>::Type;

}  // namespace dfa
