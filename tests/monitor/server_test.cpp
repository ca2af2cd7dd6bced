#include "monitor/server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "dfa/error.h"
#include "monitor/listener.h"

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

TEST(Server, ConnectionsThatSayNothingOrHalfDelayNobody) {
  const Server server("0", [] { return std::string("ok\n"); });
  std::vector<int> idle;
  for (int i = 0; i < 40; ++i) {
    idle.push_back(connect_to(port_of(server)));
    if (i % 2 == 0) ::send(idle.back(), "GET /met", 8, MSG_NOSIGNAL);
  }
  ::close(connect_to(port_of(server)));
  const double begin = monotonic_s();
  EXPECT_TRUE(ask(port_of(server), "GET /metrics HTTP/1.1\r\n\r\n").ends_with("ok\n"));
  EXPECT_LT(monotonic_s() - begin, 2);  // nobody's patience has to end first
  for (const int connection : idle) ::close(connection);
}

TEST(Server, WhatIsNoRequestGetsAFourHundred) {
  const Server server("0", [] { return std::string("ok\n"); });
  const auto status = [&](const std::string& request) {
    const std::string answer = ask(port_of(server), request);
    EXPECT_TRUE(answer.starts_with("HTTP/1.")) << request.substr(0, 40) << ": " << answer;
    return answer.size() > 12 ? std::stoi(answer.substr(9, 3)) : 0;
  };
  for (const std::string& bad :
       {std::string("what\r\n\r\n"), std::string("GET\r\n\r\n"),
        std::string("\x16\x03\x01\r\n\r\n"),
        "GET /metrics HTTP/1.1\r\nX: " + std::string(20000, 'x') + "\r\n\r\n",
        std::string("POST /metrics HTTP/1.1\r\nContent-Length: 2\r\n\r\nxx"),
        std::string("BREW /metrics HTTP/1.1\r\n\r\n")}) {
    const int answered = status(bad);
    EXPECT_GE(answered, 400) << bad.substr(0, 40);
    EXPECT_LT(answered, 500) << bad.substr(0, 40);
  }
  EXPECT_EQ(status("GET /metrics HTTP/1.1\r\n\r\n"), 200);
}

TEST(Server, AnswersHeadWithoutABody) {
  const Server server("0", [] { return std::string("value 1\n"); });
  const std::string answer = ask(port_of(server), "HEAD /metrics HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_NE(answer.find("Content-Length: 8\r\n"), std::string::npos);
  EXPECT_TRUE(answer.ends_with("\r\n\r\n"));
}

TEST(Server, MetricsThatCannotBeHadAreAnAnswerToo) {
  const Server server("0", []() -> std::string { throw std::runtime_error("no sensors"); });
  const std::string answer = ask(port_of(server), "GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 500")) << answer;
  EXPECT_TRUE(answer.ends_with("no sensors\n"));
}

TEST(Server, EndsAtOnceWhileSomebodyIsConnected) {
  std::vector<int> connections;
  double begin = 0;
  {
    const Server server("0", [] { return std::string(); });
    for (int i = 0; i < 4; ++i) connections.push_back(connect_to(port_of(server)));
    begin = monotonic_s();
  }
  EXPECT_LT(monotonic_s() - begin, 2);
  for (const int connection : connections) ::close(connection);
}

TEST(Server, AClientThatGoesAwayWhileItIsAnsweredEndsNothing) {
  const std::string page(3 << 20, 'x');
  const Server server("0", [&] { return page; });
  for (int i = 0; i < 5; ++i) {
    const int connection = connect_to(port_of(server));
    const std::string request = "GET /metrics HTTP/1.1\r\n\r\n";
    ::send(connection, request.data(), request.size(), MSG_NOSIGNAL);
    char byte = 0;
    EXPECT_EQ(::recv(connection, &byte, 1, 0), 1);
    ::close(connection);
  }
  EXPECT_TRUE(ask(port_of(server), "GET /metrics HTTP/1.0\r\n\r\n").ends_with(page));
}

TEST(Server, ListensOnIpv6) {
  try {
    const Server server("[::1]:0", [] { return std::string("ok\n"); });
    EXPECT_TRUE(server.address().starts_with("[::1]:"));
    sockaddr_in6 name{};
    name.sin6_family = AF_INET6;
    name.sin6_port = htons(static_cast<std::uint16_t>(port_of(server)));
    name.sin6_addr = in6addr_loopback;
    const int connection = ::socket(AF_INET6, SOCK_STREAM, 0);
    EXPECT_EQ(::connect(connection, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
    ::close(connection);
  } catch (const IoError& error) {
    GTEST_SKIP() << error.what();
  }
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
  for (const char* bad : {"", "127.0.0.1:", "127.0.0.1:http", "70000", "65536", "[::1]:99999",
                          "127.0.0.1:-1", "127.0.0.1:000080"}) {
    EXPECT_THROW(Server(bad, metrics), InvalidArgument) << bad;
    EXPECT_FALSE(check_address(bad)) << bad;
  }
  EXPECT_THROW(Server("no.such.host.invalid:1", metrics), InvalidArgument);
  const Server first("127.0.0.1:0", metrics);
  EXPECT_THROW(Server(first.address(), metrics), IoError);
}

}  // namespace
}  // namespace dfa::monitor
