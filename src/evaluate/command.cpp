#include "evaluate/command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/file.h"
#include "dfa/error.h"

namespace dfa::evaluate {
namespace {

constexpr double kPatience = 10;
constexpr int kNoProgram = 127;

[[noreturn]] void become(const Command& command, int output) {
  ::setpgid(0, 0);  // an interrupt of the terminal goes to us alone, and we pass it on once
  for (const int passed_on : {SIGINT, SIGTERM, SIGHUP})
    ::signal(passed_on, SIG_DFL);  // even if we ignore it
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  ::dup2(output, STDOUT_FILENO);
  for (const auto& [name, value] : command.environment) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> words;
  for (const std::string& word : command.words) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execvp(words[0], words.data());
  ::_exit(kNoProgram);
}

Ended describe(const Command& command, int status) {
  Ended ended{.started = true};
  if (WIFSIGNALED(status)) {
    ended.signal = WTERMSIG(status);
    ended.reason = fmt::format("{} was ended by signal {}", command.words[0], ended.signal);
  } else if (WEXITSTATUS(status) != 0) {
    ended.code = WEXITSTATUS(status);
    ended.started = ended.code != kNoProgram;
    ended.reason = ended.started ? fmt::format("{} ended with {}", command.words[0], ended.code)
                                 : fmt::format("{} cannot be started", command.words[0]);
  }
  return ended;
}

int wait_for(int pid, const std::function<bool()>& interrupted) {
  int status = 0;
  double asked_s = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    const double now = monotonic_s();
    if (asked_s == 0 && interrupted()) {
      ::kill(-pid, SIGINT);
      asked_s = now;
    }
    if (asked_s > 0 && now - asked_s > kPatience) ::kill(-pid, SIGKILL);
    ::usleep(20000);
  }
  return status;
}

}  // namespace

std::string to_text(const Command& command) {
  std::string text;
  for (const auto& [name, value] : command.environment) text += name + "=" + value + " ";
  for (const std::string& word : command.words) {
    const bool plain = word.find_first_of(" '\"$") == std::string::npos && !word.empty();
    text += (text.empty() || text.back() == ' ' ? "" : " ") + (plain ? word : "'" + word + "'");
  }
  return command.output.empty() ? text : text + " > " + command.output.string();
}

Ended run_command(const Command& command, const std::filesystem::path& log,
                  const std::function<bool()>& interrupted) {
  const bool to_log = command.output.empty();
  const std::string file = to_log ? log.string() : command.output.string() + ".part";
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (to_log ? O_APPEND : O_TRUNC);
  const int output =
      file.empty() ? ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0) : ::open(file.c_str(), flags, 0666);
  if (output < 0) {
    throw IoError(fmt::format("cannot write '{}': {}", file, std::strerror(errno)));
  }
  const int pid = ::fork();
  if (pid == 0) become(command, output);
  ::close(output);
  if (pid < 0) return {.reason = fmt::format("fork: {}", std::strerror(errno))};
  ::setpgid(pid, pid);
  const Ended ended = describe(command, wait_for(pid, interrupted));
  if (!to_log && ended.reason.empty()) {
    write_file_atomic(command.output, read_file(file));
    std::filesystem::remove(file);
  }
  return ended;
}

}  // namespace dfa::evaluate
