#pragma once

// The one door to the JSON library; nothing else includes it.
#include <nlohmann/json.hpp>

namespace dfa {

// Keys keep the order they were written in, so that files diff well.
using Json = nlohmann::ordered_json;

}  // namespace dfa
