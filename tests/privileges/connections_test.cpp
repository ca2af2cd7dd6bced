// What clients say, in how many pieces and connections.
#include <sys/resource.h>

#include <array>
#include <cstring>
#include <iterator>

#include "base/random.h"
#include "privileges/server_clients.h"

namespace dfa::testing {
namespace {

TEST(PrivilegesServer, AnswersWhatIsNoRequestAndGoesOn) {
  const DaemonWorld world;
  Daemon daemon(world, kAll);
  ASSERT_TRUE(daemon.started());
  Raw raw(world);
  EXPECT_TRUE(holds(raw.ask(kLease), "\\\"hello\\\" comes first"));
  EXPECT_TRUE(holds(raw.ask(R"({"op":"hello","version":2})"), "another version"));
  EXPECT_TRUE(holds(raw.ask(R"({"op":"status"})"), "comes first"));
  EXPECT_TRUE(holds(raw.ask(kHello), "\"ok\":true"));
  for (const std::string line :
       {"", "{", "null", "\xff\xfe", "[1e999]", R"({"op":"fly"})",
        R"({"op":"lease","card":"GPU-aa","seconds":61})",
        R"({"op":"set","card":"GPU-aa","limit_w":400})",
        R"({"op":"set","card":"GPU-zz","limit_w":400})", R"({"op":"restore","card":"GPU-aa"})"}) {
    EXPECT_TRUE(holds(raw.ask(line), "{\"ok\":false,\"error\":\"")) << line;
  }
  std::string nul = R"({"op":"status"})";
  nul += '\0';
  EXPECT_TRUE(holds(raw.ask(nul), "\"ok\":false"));
  EXPECT_TRUE(holds(raw.ask(kLease), "\"found_w\":650"));
  EXPECT_EQ(world.set(), "limit 650\nlimit 650\n");
}

// Requests with bytes changed, left out and put in: each line has one answer, and nothing outside
// the list is ever set.
TEST(PrivilegesServer, EveryLineHasOneAnswerWhateverIsInIt) {
  const DaemonWorld world;
  Daemon daemon(world, kAll);
  ASSERT_TRUE(daemon.started());
  const std::string lines[] = {kHello,
                               kLease,
                               R"({"op":"set","card":"GPU-aa","limit_w":450})",
                               R"({"op":"set","card":"GPU-aa","clock_mhz":[1000,1200]})",
                               R"({"op":"status"})",
                               R"({"op":"restore","card":"GPU-aa"})"};
  Raw raw(world);
  ASSERT_TRUE(holds(raw.ask(kHello), "\"ok\":true"));
  const std::string bytes = "0123456789.-eE{}[]\",:nul \t\xff\x80";
  std::uint64_t seed = 1;
  const auto random = [&](std::size_t below) { return (seed = mix64(seed + 1)) % below; };
  int good = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string line = lines[random(std::size(lines))];
    for (std::size_t change = random(4); change > 0; --change) {
      const std::size_t at = random(line.size());
      const char byte = bytes[random(bytes.size())];
      const std::size_t how = random(3);
      if (how == 0) line[at] = byte;
      if (how == 1) line.insert(at, 1, byte);
      if (how == 2) line.erase(at, 1);
    }
    const std::string answer = raw.ask(line);
    const Json json = Json::parse(answer, nullptr, false);
    ASSERT_TRUE(json.is_object() && json.at("ok").is_boolean()) << line << "\n" << answer;
    good += json.at("ok").get<bool>() ? 1 : 0;
  }
  EXPECT_GT(good, 100);
  EXPECT_EQ(daemon.end(), 0);
  std::istringstream set(world.set());
  double value = 0, most = 0;
  int limits = 0, clocks = 0;
  for (std::string line; std::getline(set, line);) {
    if (std::sscanf(line.c_str(), "limit %lf", &value) == 1) {
      EXPECT_TRUE(value == 650 || (value >= 300 && value <= 600)) << line;
      limits += value != 650 ? 1 : 0;
    } else if (std::sscanf(line.c_str(), "clocks %lf %lf", &value, &most) == 2) {
      EXPECT_TRUE(value >= 900 && value <= most && most <= 1500) << line;
      ++clocks;
    }
  }
  EXPECT_GT(limits, 10);
  EXPECT_GT(clocks, 10);
}

TEST(PrivilegesServer, ALineThatIsTooLongEndsTheConnectionAndItsLease) {
  const DaemonWorld world;
  Daemon daemon(world, kAll);
  ASSERT_TRUE(daemon.started());
  Raw raw(world);
  raw.ask(kHello);
  raw.ask(kLease);
  const std::string full = R"({"op":"status"})";
  EXPECT_TRUE(holds(raw.ask(full + std::string(4095 - full.size(), ' ')), "\"ok\":true"));
  EXPECT_TRUE(holds(raw.ask(R"({"op":"set","card":"GPU-aa","limit_w":400})"), "\"ok\":true"));
  EXPECT_TRUE(holds(raw.ask(std::string(4096, ' ')), "a line of more than 4096 bytes"));
  EXPECT_EQ(raw.hear(), "");
  EXPECT_TRUE(world.is_set("limit 400\nlimit 650\n"));
}

TEST(PrivilegesServer, LinesComeInAnyPiecesAndAreAnsweredInOrder) {
  const DaemonWorld world;
  Daemon daemon(world, kAll);
  ASSERT_TRUE(daemon.started());
  Raw raw(world);
  raw.say(R"({"op":"hel)");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  raw.say(std::string("lo\",\"version\":1}\n") + kLease + "\n{\"op\":\"set\",\"card\":\"GPU-aa\",");
  EXPECT_TRUE(holds(raw.hear(), "\"version\":1"));
  EXPECT_TRUE(holds(raw.hear(), "\"lease_s\":60"));
  raw.say("\"limit_w\":333}\n");
  raw.say_no_more();  // what was said is answered, then the card is put back
  EXPECT_EQ(raw.hear(), "{\"ok\":true}");
  EXPECT_TRUE(world.is_set("limit 333\nlimit 650\n"));
}

TEST(PrivilegesServer, NobodyWaitsForAClientThatSaysMuchOrReadsNothing) {
  const DaemonWorld world;
  Daemon daemon(world, kAll);
  ASSERT_TRUE(daemon.started());
  const int pid = ::fork();
  if (pid == 0) {  // never reads
    ::alarm(60);
    Raw raw(world);
    raw.say(std::string(kHello) + "\n");
    const std::string line = "{\"op\":\"status\"}\n";
    const auto socket = privileges::connect_to(world.socket());
    while (::send(socket.get(), line.data(), line.size(), MSG_NOSIGNAL) > 0) {
    }
    ::_exit(0);  // it was sent away
  }
  Client client(world.socket());
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(client.status().value);
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
}

TEST(PrivilegesServer, AUserHasSoManyConnectionsAndNoMore) {
  const DaemonWorld world;
  Daemon daemon(world, kAll);
  ASSERT_TRUE(daemon.started());
  std::vector<std::unique_ptr<Client>> clients;
  for (std::size_t i = 0; i < privileges::Server::kMostOfAUser; ++i) {
    clients.push_back(std::make_unique<Client>(world.socket()));
  }
  EXPECT_TRUE(holds(why_not(world), "too many connections")) << why_not(world);
  clients.pop_back();
  EXPECT_TRUE(soon([&] { return why_not(world).empty(); }));
}

TEST(PrivilegesServer, WhereThereIsNoRoomForAnotherConnectionItWaitsAndGoesOn) {
  const DaemonWorld world;
  Daemon daemon(world, kAll, [] {
    const rlimit few{16, 16};
    ::setrlimit(RLIMIT_NOFILE, &few);
  });
  ASSERT_TRUE(daemon.started());
  {
    std::vector<std::unique_ptr<Raw>> many;
    for (int i = 0; i < 16; ++i) many.push_back(std::make_unique<Raw>(world));
    EXPECT_TRUE(soon([&] { return holds(world.log(), "cannot accept a connection"); }));
  }
  Client client(world.socket());
  EXPECT_TRUE(client.open("GPU-aa").value);
}

TEST(PrivilegesClient, WhatIsNoDaemonIsToldInOneLine) {
  const DaemonWorld world;
  EXPECT_TRUE(holds(why_not(world), "No such file"));
  const privileges::Listener listener(world.socket(), std::nullopt);
  const int pid = ::fork();
  if (pid == 0) {
    ::alarm(60);
    for (const char* answer :
         {"HTTP/1.1 400\r\n", "{\"ok\":true}\n", "{\"ok\":true,\"cards\":[{}]}\n", ""}) {
      int socket = -1;
      while ((socket = ::accept(listener.get(), nullptr, nullptr)) < 0) ::usleep(1000);
      std::array<char, 256> bytes{};
      [[maybe_unused]] const auto got = ::recv(socket, bytes.data(), bytes.size(), 0);
      ::send(socket, answer, std::strlen(answer), MSG_NOSIGNAL);
      ::close(socket);
    }
    ::_exit(0);
  }
  for (int i = 0; i < 4; ++i) {
    const std::string told = why_not(world);
    EXPECT_TRUE(holds(told, "no daemon of privileges at")) << told;
    EXPECT_EQ(told.find('\n'), std::string::npos);
  }
  ::waitpid(pid, nullptr, 0);
}

}  // namespace
}  // namespace dfa::testing
