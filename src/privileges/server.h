#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "privileges/broker.h"
#include "privileges/socket.h"

namespace dfa::privileges {

// The broker behind a Unix socket: one thread, one loop. A client that says what is no line, does
// not read its answers or comes too often is sent away; the others do not wait for it.
class Server {
 public:
  static constexpr std::size_t kMostClients = 256, kMostOfAUser = 32;

  struct Options {
    std::filesystem::path socket;
    std::optional<gid_t> group{};  // of the socket; else the one this process runs as
    std::vector<Grant> grants;
    std::string allow_file;  // for messages
    Broker::Log log;
  };

  // Call it before there are threads and before CUDA or NVML were used: restore daemons are forked.
  // Throws as Broker and Listener, and where another server has the path.
  explicit Server(Options options);

  void run(int stop);  // until this descriptor can be read
  Verdict close() { return broker_.close(); }

 private:
  struct Connection {
    Descriptor socket;
    uid_t uid;
    LineBuffer lines{kMostRequest};
    bool ended = false;  // it says no more; what it said is answered first
  };

  void accept_all();
  void welcome(Descriptor socket);
  void receive(Connection& connection);
  bool answer_one(int number, Connection& connection);  // false: it goes
  void drop(int number);
  int timeout_ms() const;

  LockFile lock_;
  Broker broker_;
  Listener listener_;
  Broker::Log log_;
  std::map<int, Connection> connections_;
  int last_ = 0;               // number of a connection
  bool more_ = false;          // lines wait that were read already
  double accept_again_s_ = 0;  // when the system had no room for another
};

}  // namespace dfa::privileges
