#pragma once

#include <string>

#include "dfa/problem.h"

namespace dfa {

// C++ text that defines UserText<true> of kernels/variant/user_text.cuh for a problem that has a
// mask_mod or a score_mod: a statement for each operation of their trees, and for its derivative.
// Nothing of what a caller wrote comes into it but numbers. Throws InvalidArgument where a text is
// wrong.
std::string user_text_source(const Problem& problem);

}  // namespace dfa
