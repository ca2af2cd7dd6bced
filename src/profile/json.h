#pragma once

#include <string>
#include <vector>

#include "profile/row.h"

namespace dfa::profile {

// Rows as a JSON file, schema dfa-profile/1, or dfa-profile/2 where some were measured at a locked
// clock: who reads the first alone would take those for the card's own. from_json reads both and
// throws InvalidArgument that names the row.
std::string to_json(const std::vector<Row>& rows);
std::vector<Row> from_json(const std::string& text);

}  // namespace dfa::profile
