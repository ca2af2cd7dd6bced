#pragma once

#include <functional>
#include <memory>
#include <string>

namespace dfa::monitor {

// Answers GET and HEAD of /metrics by HTTP, on a thread of its own. However many connections are
// open and say nothing, others are answered at once.
class Server {
 public:
  // address: "127.0.0.1:9400", "[::1]:9400", a port alone for loopback; port 0 takes a free one.
  // `metrics` is called from the thread; what it throws becomes an answer of status 500. Throws
  // InvalidArgument for another text, IoError where it cannot listen there.
  Server(const std::string& address, std::function<std::string()> metrics);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  const std::string& address() const { return address_; }  // with the port that was taken

 private:
  class Loop;

  std::string address_;
  std::unique_ptr<Loop> loop_;
};

}  // namespace dfa::monitor
