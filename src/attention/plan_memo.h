#pragma once

#include <optional>

#include "dfa/attention.h"

namespace dfa {

// Plans that were made lately, by what was asked for. Only those that carry what their backend made
// ready are kept: it knows whether they are still what it would plan. Thread-safe.
std::optional<Plan> remembered_plan(const Problem& problem, const PlanOptions& options);
// The last that differs in the number of keys alone.
std::optional<Plan> plan_of_other_keys(const Problem& problem, const PlanOptions& options);
void remember_plan(const Problem& problem, const PlanOptions& options, const Plan& plan);

}  // namespace dfa
