#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Pieces of a problem line.
namespace dfa {

// The whole text as a number, or nothing.
template <typename Number>
std::optional<Number> to_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}
inline std::optional<std::int64_t> to_integer(std::string_view text) {
  return to_number<std::int64_t>(text);
}

// As few digits as say the same number.
inline std::string shortest(double value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  return {text, end};
}

// What lies between separators, without what is empty.
inline std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = text.find_first_of(separators);
    const std::string_view part = text.substr(0, end);
    if (!part.empty()) parts.push_back(part);
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return parts;
}

// What stands between commas, empty parts too; none of an empty text.
inline std::vector<std::string_view> between_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  if (text.empty()) return parts;
  for (std::size_t end = text.find(','); end != std::string_view::npos; end = text.find(',')) {
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  parts.push_back(text);
  return parts;
}

}  // namespace dfa
