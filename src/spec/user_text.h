#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dfa/problem.h"

// mask_mod and score_mod of a problem (spec/expression.h).
namespace dfa {

// The problem with both in their shortest spelling. Throws InvalidArgument where one is wrong.
Problem with_short_text(Problem problem);

// " mask_mod(…) score_mod(…)", what there is of them.
std::string user_text(const Problem& problem);

// About how many instructions both take of a GPU for one pair, by what compiled kernels grew by.
// Sines and powers are most of it: they have a way for large arguments, too. 0 of neither.
int instructions_of_texts(const Problem& problem);

// Throws InvalidArgument.
void require_user_text(const Problem& problem);

// What stands between white space in a problem line, where white space within the parentheses of
// mask_mod(…) and score_mod(…) is theirs.
std::vector<std::string_view> tokens_of(std::string_view line);

}  // namespace dfa
