#pragma once

#include "dfa/attention.h"

namespace dfa {

// A plan of one pass of a forward with its backward, whose configuration may be of the other: that
// says nothing of this one but, in fp32 on a GPU, its target.
Plan plan_part(const Problem& problem, const PlanOptions& options);

}  // namespace dfa
