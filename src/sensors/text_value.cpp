#include "sensors/text_value.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <system_error>

#include "base/file.h"

namespace dfa::sensors {
namespace {

std::string trimmed(const std::string& text) {
  const char* space = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(space);
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(space) - begin + 1);
}

}  // namespace

std::string read_text(const std::filesystem::path& path) {
  try {
    return trimmed(read_file(path));
  } catch (const IoError&) {
    return {};
  }
}

NumberFile read_number(const std::filesystem::path& path) {
  std::string text;
  try {
    text = trimmed(read_file(path));
  } catch (const IoError& error) {
    return {std::nullopt, Verdict::no(error.what())};
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return {std::nullopt, Verdict::no("'" + path.string() + "' holds '" + text.substr(0, 40) +
                                      "', not a number")};
  }
  return {value, Verdict::yes()};
}

std::string find_field(const std::string& text, const std::string& key, char separator) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find(separator);
    if (at != std::string::npos && trimmed(line.substr(0, at)) == key) {
      return trimmed(line.substr(at + 1));
    }
  }
  return {};
}

std::vector<std::filesystem::path> entries(const std::filesystem::path& folder,
                                           const std::string& prefix) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename().string().starts_with(prefix)) found.push_back(it->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace dfa::sensors
