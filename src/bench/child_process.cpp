#include "bench/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "base/clock.h"
#include "base/file.h"
#include "dfa/error.h"

extern char** environ;

namespace dfa::bench {
namespace {

constexpr double kPatience = 5;  // seconds for a program to end by itself

std::string last_line(const std::filesystem::path& path) {
  try {
    std::string text = read_file(path);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    const std::size_t begin = text.rfind('\n');
    return begin == std::string::npos ? text : text.substr(begin + 1);
  } catch (const IoError&) {
    return "";
  }
}

int spawn(const std::vector<std::string>& command, int connection,
          const std::filesystem::path& errors, int& pid) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, connection, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, connection, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, errors.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int error = posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command,
                           const std::filesystem::path& errors)
    : name_(command.at(0)), errors_(errors) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Unsupported("'" + name_ + "': no connection: " + std::strerror(errno));
  }
  const int error = spawn(command, ends[1], errors_, pid_);
  ::close(ends[1]);
  connection_ = ends[0];
  if (error == 0) return;
  ::close(connection_);
  throw Unsupported("'" + name_ + "' cannot be started: " + std::strerror(error));
}

ChildProcess::~ChildProcess() {
  ::close(connection_);
  const double begin = monotonic_s();
  while (::waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (monotonic_s() - begin > kPatience) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      return;
    }
    ::usleep(5000);
  }
}

void ChildProcess::fail(const std::string& what) const {
  const std::string said = last_line(errors_);
  throw Unsupported("'" + name_ + "' " + what + (said.empty() ? "" : ": " + said));
}

std::string ChildProcess::ask(const std::string& line, double timeout_s) {
  const std::string text = line + "\n";
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t now = ::send(connection_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (now < 0 && errno != EINTR) fail("has ended");
    if (now > 0) sent += static_cast<std::size_t>(now);
  }
  const double deadline = monotonic_s() + timeout_s;
  while (true) {
    if (const std::size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string answer = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return answer;
    }
    pollfd waiting{.fd = connection_, .events = POLLIN, .revents = 0};
    const double left = deadline - monotonic_s();
    if (left <= 0)
      fail("does not answer within " + std::to_string(static_cast<int>(timeout_s)) + " s");
    if (::poll(&waiting, 1, static_cast<int>(left * 1e3) + 1) <= 0) continue;
    char bytes[4096];
    const ssize_t got = ::recv(connection_, bytes, sizeof bytes, 0);
    if (got == 0 || (got < 0 && errno != EINTR)) fail("has ended");
    if (got > 0) unread_.append(bytes, static_cast<std::size_t>(got));
  }
}

}  // namespace dfa::bench
