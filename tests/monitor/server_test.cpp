#include "monitor/server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "dfa/error.h"

namespace dfa::monitor {
namespace {

int port_of(const Server& server) {
  return std::stoi(server.address().substr(server.address().rfind(':') + 1));
}

int connect_to(int port) {
  const int connection = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<std::uint16_t>(port));
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(connection, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  return connection;
}

// What the server answers until it closes the connection.
std::string ask(int port, const std::string& request) {
  const int connection = connect_to(port);
  ::send(connection, request.data(), request.size(), MSG_NOSIGNAL);
  std::string text;
  std::array<char, 4096> bytes{};
  for (;;) {
    const ssize_t got = ::recv(connection, bytes.data(), bytes.size(), 0);
    if (got <= 0) break;
    text.append(bytes.data(), static_cast<std::size_t>(got));
  }
  ::close(connection);
  return text;
}

TEST(Server, AnswersAScrapeWithTheMetricsOfThatMoment) {
  std::atomic<int> asked{0};
  const Server server("0", [&] { return "value " + std::to_string(++asked) + "\n"; });
  EXPECT_TRUE(server.address().starts_with("127.0.0.1:"));
  const std::string first = ask(port_of(server), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(first.starts_with("HTTP/1.1 200 OK\r\n")) << first;
  EXPECT_NE(first.find("Content-Type: text/plain; version=0.0.4"), std::string::npos);
  EXPECT_NE(first.find("Content-Length: 8\r\n"), std::string::npos);
  EXPECT_TRUE(first.ends_with("\r\n\r\nvalue 1\n"));
  EXPECT_TRUE(ask(port_of(server), "GET /metrics?x=1 HTTP/1.1\r\n\r\n").ends_with("value 2\n"));
}

TEST(Server, AnswersALongPage) {
  const std::string page(3 << 20, 'x');
  const Server server("0", [&] { return page; });
  EXPECT_TRUE(ask(port_of(server), "GET /metrics HTTP/1.0\r\n\r\n").ends_with("\r\n" + page));
}

TEST(Server, RefusesOtherPathsAndMethods) {
  const Server server("0", [] { return std::string("secret"); });
  EXPECT_TRUE(ask(port_of(server), "GET /other HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
  EXPECT_TRUE(ask(port_of(server), "GET /metricsx HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
  EXPECT_TRUE(ask(port_of(server), "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
  EXPECT_TRUE(ask(port_of(server), "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
}

TEST(Server, SilentBrokenAndEndlessRequestsDoNotStopIt) {
  const Server server("0", [] { return std::string("ok\n"); });
  const int silent = connect_to(port_of(server));
  ::close(connect_to(port_of(server)));
  const double begin = monotonic_s();
  ask(port_of(server), std::string(20000, 'x'));
  EXPECT_TRUE(ask(port_of(server), "GET /metrics HTTP/1.1\r\n\r\n").ends_with("ok\n"));
  EXPECT_LT(monotonic_s() - begin, 10);  // patience with the silent one ends
  ::close(silent);
}

TEST(Server, EndsWhileSomebodyIsConnected) {
  int connection = -1;
  {
    const Server server("0", [] { return std::string(); });
    connection = connect_to(port_of(server));
  }
  ::close(connection);
}

TEST(Server, ManyMayAsk) {
  const Server server("127.0.0.1:0", [] { return std::string("ok\n"); });
  std::atomic<int> answered{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        answered += ask(port_of(server), "GET /metrics HTTP/1.1\r\n\r\n").ends_with("ok\n");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered, 80);
}

TEST(Server, BadAddressesAndATakenPortAreErrors) {
  const auto metrics = [] { return std::string(); };
  for (const char* bad : {"", "127.0.0.1:", "127.0.0.1:http", "70000", "no.such.host.invalid:1"}) {
    EXPECT_THROW(Server(bad, metrics), InvalidArgument) << bad;
  }
  const Server first("127.0.0.1:0", metrics);
  EXPECT_THROW(Server(first.address(), metrics), IoError);
}

}  // namespace
}  // namespace dfa::monitor
