#pragma once

#include <string>

#include "contract/backend.h"

namespace dfa {

// Texts are compiled where they are first used, by whatever compiler is there. Before that a small
// problem with those of `problem`, its types, head dims and pass, is run by the backend and held
// against fp64; once for each text, type, device and `config` of a process, which names the kernels
// that the problem's plan has. Throws Unsupported with the first line of what is wrong.
void require_right_texts(const Backend& backend, const Problem& problem,
                         const std::string& config = "");

// What names the kernels of a plan, not its tiles, as PlanOptions::config; empty where none do.
std::string kernels_named(const Plan& plan);

// The problem that is run.
Problem small_problem_of_texts(const Problem& problem);

}  // namespace dfa
