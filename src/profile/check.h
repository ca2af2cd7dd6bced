#pragma once

#include "dfa/error.h"
#include "profile/row.h"

namespace dfa::profile {

// Could a row have been measured? The reason where not. Files hold what somebody wrote.
Verdict check(const Row& row);

}  // namespace dfa::profile
