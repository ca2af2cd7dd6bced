#pragma once

#include <grp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "privileges/client.h"
#include "privileges/daemon.h"
#include "privileges/server.h"

// Whoever talks to a daemon of privileges in a test, in good faith or not.
namespace dfa::testing {

using privileges::Client;

inline const std::string kAll = std::string(DaemonWorld::kCard) + " " + kOwn +
                                " limit:300:600W clock:900:1500MHz lease:60s\n"
                                "GPU-bb " +
                                kOwn + " clock:900:1500MHz\n";

inline std::string why_not(const DaemonWorld& world) {
  try {
    const Client client(world.socket());
  } catch (const Unsupported& error) {
    return error.what();
  }
  return "";
}

// A client that says what it likes.
class Raw {
 public:
  explicit Raw(const DaemonWorld& world) : socket_(privileges::connect_to(world.socket())) {
    const timeval patience{10, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  void say(const std::string& text) {
    EXPECT_EQ(::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  void say_no_more() { ::shutdown(socket_.get(), SHUT_WR); }
  std::string hear() {  // a line, or what came before the end
    std::string line;
    char byte = 0;
    while (::recv(socket_.get(), &byte, 1, 0) == 1 && byte != '\n') line += byte;
    return line;
  }
  std::string ask(const std::string& text) {
    say(text + "\n");
    return hear();
  }

 private:
  Descriptor socket_;
};

inline constexpr const char* kHello = R"({"op":"hello","version":1})";
inline constexpr const char* kLease = R"({"op":"lease","card":"GPU-aa"})";

inline bool holds(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

// A process that holds the first card at 450 W until it is killed.
inline int hold(const DaemonWorld& world) {
  const int pid = ::fork();
  if (pid != 0) return pid;
  ::alarm(100);
  Client client(world.socket());
  if (!client.open(DaemonWorld::kCard).value || !client.set_power_limit(450)) ::_exit(1);
  for (;;) ::pause();
}

inline void kill_and_wait(int pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

// What a process of that user says of itself: its exit code.
inline int as_user(uid_t uid, std::vector<gid_t> groups, const std::function<bool()>& does) {
  const int pid = ::fork();
  if (pid == 0) {
    ::alarm(60);
    const bool changed =
        ::setgroups(groups.size(), groups.data()) == 0 && ::setgid(uid) == 0 && ::setuid(uid) == 0;
    ::_exit(changed && does() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

inline int restorer_of(int server) {
  for (const auto& process : std::filesystem::directory_iterator("/proc")) {
    if (process.path().filename().string().find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    std::ifstream file(process.path() / "stat");
    std::string text;
    std::getline(file, text);
    const std::size_t name = text.find(") ");
    if (!holds(text, "(dfa-restore) ")) continue;
    if (std::stoi(text.substr(name + 4)) == server) return std::stoi(process.path().filename());
  }
  return -1;
}

}  // namespace dfa::testing
