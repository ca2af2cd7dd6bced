#pragma once

#include "contract/backend.h"

namespace dfa {

// Texts are compiled where they are first used, by whatever compiler is there. Before that a small
// problem with those of `problem`, its types, head dims and pass, is run by the backend and held
// against fp64; once for each text, type and device of a process. Throws Unsupported with the first
// line of what is wrong.
void require_right_texts(const Backend& backend, const Problem& problem);

// The problem that is run.
Problem small_problem_of_texts(const Problem& problem);

}  // namespace dfa
