#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dfa/error.h"

// Reading the one-value text files that a kernel exposes under /proc and /sys.
namespace dfa::sensors {

// File content without surrounding white space; empty when it cannot be read.
std::string read_text(const std::filesystem::path& path);

// The number a file holds, or the reason why there is none.
struct NumberFile {
  std::optional<double> value;
  Verdict status;
};
NumberFile read_number(const std::filesystem::path& path);

// Value of "key <separator> value" lines such as those of /proc/meminfo and /etc/os-release.
std::string find_field(const std::string& text, const std::string& key, char separator);

// Entries of a folder whose name starts with `prefix`, sorted; none when the folder is not there.
std::vector<std::filesystem::path> entries(const std::filesystem::path& folder,
                                           const std::string& prefix);

}  // namespace dfa::sensors
