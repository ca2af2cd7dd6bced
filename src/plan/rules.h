#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "dfa/error.h"

// How a configuration is refused: a rule is one line, a condition and the reason where it fails.
namespace dfa::rules {

inline void append(std::string& text, std::string_view part) { text += part; }
inline void append(std::string& text, long long number) { text += std::to_string(number); }

// No, by a reason of texts and numbers.
template <typename... Parts>
Verdict no(const Parts&... parts) {
  std::string reason;
  (append(reason, parts), ...);
  return Verdict::no(std::move(reason));
}

template <typename... Parts>
Verdict require(bool holds, const Parts&... parts) {
  return holds ? Verdict::yes() : no(parts...);
}

// The first refusal.
inline Verdict all(std::initializer_list<Verdict> rules) {
  for (const Verdict& rule : rules) {
    if (!rule) return rule;
  }
  return Verdict::yes();
}

}  // namespace dfa::rules
