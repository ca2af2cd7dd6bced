#pragma once

#include <string>
#include <string_view>

namespace dfa {

// 32 hex digits of the bytes: XXH3 of 128 bits, by the xxHash library. It tells contents apart; it
// is no proof against somebody who makes up two that are alike.
std::string digest(std::string_view bytes);

}  // namespace dfa
