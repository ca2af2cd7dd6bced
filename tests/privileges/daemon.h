#pragma once

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "base/file.h"
#include "privileges/server.h"
#include "temp_dir.h"

namespace dfa::testing {

inline bool soon(const std::function<bool()>& happens) {
  for (int i = 0; i < 1000; ++i) {
    if (happens()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// Two cards of the made-up NVML, whose settings are files, and servers in processes of their own.
class DaemonWorld {
 public:
  static constexpr const char* kCard = "0000:3b:00.0";
  static constexpr const char* kOther = "0000:5e:00.0";

  explicit DaemonWorld(const std::string& more = "") {
    scenario(more);
    ::setenv("DFA_NVML", DFA_FAKE_NVML_LIBRARY, 1);
    ::setenv("DFA_FAKE_NVML", (tree / "scenario").c_str(), 1);
    ::setenv("DFA_STATE_DIR", tree.path().c_str(), 1);
  }
  ~DaemonWorld() {
    for (const char* name : {"DFA_NVML", "DFA_FAKE_NVML", "DFA_STATE_DIR"}) ::unsetenv(name);
  }
  DaemonWorld(const DaemonWorld&) = delete;
  DaemonWorld& operator=(const DaemonWorld&) = delete;

  void scenario(const std::string& more) const {
    tree.write("scenario",
               more + "card H200 GPU-aa 00000000:3B:00.0\nlimit 650\nlimits 200 700\nsettings " +
                   (tree / "first").string() +
                   "\ncard H200 GPU-bb 00000000:5E:00.0\nlimit 700\nlimits 200 700\nsettings " +
                   (tree / "second").string() + "\n");
  }

  std::filesystem::path socket() const { return tree / "privileges.sock"; }
  std::string set(const char* file = "first") const {
    return std::filesystem::exists(tree / file) ? read_file(tree / file) : "";
  }
  bool is_set(const std::string& end, const char* file = "first") const {
    return soon([&] { return set(file).ends_with(end); });
  }
  bool remembers() const { return std::filesystem::exists(tree / "dfa-card-0000-3b-00.0"); }
  std::string log() const {
    return std::filesystem::exists(tree / "log") ? read_file(tree / "log") : "";
  }

  TempDir tree;
};

// Where this process may do everything the list says.
inline const std::string kOwn = "user:" + std::to_string(::geteuid());

class Daemon {
 public:
  // `first` runs in the process of the server before it.
  explicit Daemon(const DaemonWorld& world, const std::string& allow,
                  const std::function<void()>& first = {})
      : world_(world) {
    std::filesystem::remove(world.tree / "log");
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, stop_) != 0) throw std::runtime_error("no sockets");
    pid_ = ::fork();
    if (pid_ == 0) ::_exit(serve(allow, first));
    ::close(stop_[0]);
    started_ = soon([&] { return world_.log().find("ready") != std::string::npos || ended(); });
  }
  ~Daemon() {
    if (pid_ > 0) end();
    ::close(stop_[1]);
  }
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  bool started() const { return started_ && pid_ > 0; }
  int pid() const { return pid_; }

  int end() {  // gently: its exit code
    ::send(stop_[1], "x", 1, MSG_NOSIGNAL);
    return wait();
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    wait();
  }

 private:
  bool ended() {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) != pid_) return false;
    pid_ = -1;
    return true;
  }
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  int serve(const std::string& allow, const std::function<void()>& first) {
    ::alarm(100);  // outlives no test that failed
    ::close(stop_[1]);
    const int out =
        ::open((world_.tree / "log").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644);
    const auto log = [out](const std::string& text) {
      const std::string line = text + "\n";
      [[maybe_unused]] const auto written = ::write(out, line.data(), line.size());
    };
    try {
      privileges::Server server({.socket = world_.socket(),
                                 .grants = privileges::parse_allow_list(allow, "allow"),
                                 .allow_file = "allow",
                                 .log = log});
      log("ready");
      if (first) first();
      server.run(stop_[0]);
      const Verdict closed = server.close();
      log(closed ? "closed" : closed.reason);
      return closed ? 0 : 1;
    } catch (const std::exception& error) {
      log(error.what());
      return 2;
    }
  }

  const DaemonWorld& world_;
  int stop_[2] = {-1, -1};
  int pid_ = -1;
  bool started_ = false;
};

}  // namespace dfa::testing
