#pragma once

#include <cstdint>
#include <string>

// What the text of a problem and validate() hold its numbers to, and refuse it by.
namespace dfa::problem_rules {

inline constexpr std::int64_t kMaxSize = 1LL << 40;  // any one dimension
inline constexpr int kMostSplits = 256;              // of a tile, as peers have them

// Throws InvalidArgument "problem: " and the text.
[[noreturn]] void bad(const std::string& text);

void require_size(const char* name, std::int64_t value);

}  // namespace dfa::problem_rules
