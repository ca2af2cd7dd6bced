#pragma once

#include <string>

#include "dfa/attention.h"
#include "power/policy.h"

namespace dfa::run {

// The plan that a policy without a cap chooses from the rows of a profile for problems of these
// sizes, whatever their strides and scale. profile: a file of dfa tune, or "shipped". Throws
// InvalidArgument for a cap, which holds over time and not for a call, Unsupported where the
// profile has no row that the policy could follow.
Plan policy_plan(const Problem& problem, const std::string& profile, const std::string& backend,
                 const power::Policy& policy);

}  // namespace dfa::run
