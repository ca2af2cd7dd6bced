#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace dfa::evaluate {

// A program to run, and where its standard output goes: a file, or with the errors into the log.
struct Command {
  std::vector<std::string> words;
  std::filesystem::path output{};
  std::vector<std::pair<std::string, std::string>> environment{};  // set on top of ours
};

std::string to_text(const Command& command);  // as one would type it

struct Ended {
  bool started = false;
  int code = 0;          // of exit
  int signal = 0;        // that ended it
  std::string reason{};  // in words, unless it ended with 0
};

// Runs it to its end. Asked to end by `interrupted`, it sends one interrupt, and a kill ten seconds
// later. A command dies with this process. Its errors go where ours go; so does its output where
// `log` is empty.
Ended run_command(const Command& command, const std::filesystem::path& log,
                  const std::function<bool()>& interrupted);

}  // namespace dfa::evaluate
