#pragma once

#include <functional>
#include <string>
#include <thread>

namespace dfa::monitor {

// Answers GET /metrics by HTTP, one connection at a time, on a thread of its own.
class Server {
 public:
  // address: "127.0.0.1:9400", "[::1]:9400", a port alone for loopback; port 0 takes a free one.
  // Throws InvalidArgument for another text, IoError where it cannot listen there.
  Server(const std::string& address, std::function<std::string()> metrics);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  const std::string& address() const { return address_; }  // with the port that was taken

 private:
  void serve();
  void answer(int connection);

  std::function<std::string()> metrics_;
  std::string address_;
  int listener_ = -1;
  int wake_[2] = {-1, -1};  // closed on one end: the thread ends
  std::thread thread_;
};

}  // namespace dfa::monitor
