#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace dfa::bench {

// A program that answers lines: what it reads and writes on its standard input and output is one
// connection to us. What it says on standard error is kept in a file.
class ChildProcess {
 public:
  // Throws Unsupported when the program cannot be started.
  ChildProcess(const std::vector<std::string>& command, const std::filesystem::path& errors);
  ~ChildProcess();  // closes the connection, which should end it; ends it after a while
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Sends a line and waits for one. Throws Unsupported, with the last line of its errors, when it
  // has ended or does not answer in time.
  std::string ask(const std::string& line, double timeout_s);

 private:
  [[noreturn]] void fail(const std::string& what) const;

  std::string name_;
  std::filesystem::path errors_;
  int pid_ = -1;
  int connection_ = -1;
  std::string unread_;
};

}  // namespace dfa::bench
