#pragma once

#include <fstream>
#include <string>
#include <vector>

namespace dfa {

// The problem lines of a file under problems/, without comments and empty lines.
inline std::vector<std::string> problem_lines(const std::string& file) {
  std::ifstream stream(std::string(DFA_SOURCE_DIR) + "/problems/" + file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    if (!line.empty() && line.front() != '#') lines.push_back(line);
  }
  return lines;
}

}  // namespace dfa
