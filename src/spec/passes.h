#pragma once

#include "dfa/problem.h"

namespace dfa {

// Which passes a problem asks for.
constexpr bool has_forward(const Problem& p) { return p.pass != Pass::backward; }
constexpr bool has_backward(const Problem& p) { return p.pass != Pass::forward; }

}  // namespace dfa
