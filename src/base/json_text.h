#pragma once

#include <string_view>

#include "base/json.h"

namespace dfa {

// Reads one JSON text. Throws InvalidArgument in one line for what the library would take in
// silence or crash on as well as for what it refuses: no text at all, two values of one key in an
// object, nesting beyond 64, numbers beyond double. A byte order mark before it is passed over.
Json parse_json(std::string_view text);

}  // namespace dfa
