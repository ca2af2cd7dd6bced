#include "privileges/server.h"

#include <grp.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/random.h"
#include "privileges/client.h"
#include "privileges/daemon.h"

namespace dfa::testing {
namespace {

using privileges::Client;

const std::string kAll = std::string(DaemonWorld::kCard) + " " + kOwn +
                         " limit:300:600W clock:900:1500MHz lease:60s\n"
                         "GPU-bb " +
                         kOwn + " clock:900:1500MHz\n";

std::string why_not(const DaemonWorld& world) {
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

constexpr const char* kHello = R"({"op":"hello","version":1})";
constexpr const char* kLease = R"({"op":"lease","card":"GPU-aa"})";

bool holds(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

// A process that holds the first card at 450 W until it is killed.
int hold(const DaemonWorld& world) {
  const int pid = ::fork();
  if (pid != 0) return pid;
  ::alarm(100);
  Client client(world.socket());
  if (!client.open(DaemonWorld::kCard).value || !client.set_power_limit(450)) ::_exit(1);
  for (;;) ::pause();
}

void kill_and_wait(int pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

// What a process of that user says of itself: its exit code.
int as_user(uid_t uid, std::vector<gid_t> groups, const std::function<bool()>& does) {
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

TEST(PrivilegesServer, LendsALeverForATimeAndPutsItBack) {
  const DaemonWorld world;
  Daemon daemon(world, kAll);
  ASSERT_TRUE(daemon.started()) << world.log();
  EXPECT_EQ(std::filesystem::status(world.socket()).permissions(), std::filesystem::perms{0660});
  Client client(world.socket());
  ASSERT_EQ(client.offers().size(), 2U);
  EXPECT_EQ(client.offers()[0].limit_w, (Range{300, 600}));
  EXPECT_EQ(client.offers()[1].limit_w, std::nullopt);
  EXPECT_EQ(client.offers()[1].clock_hz, (Range{900e6, 1500e6}));
  const auto limits = client.open("GPU-aa");
  ASSERT_TRUE(limits.value) << limits.status.reason;
  EXPECT_EQ(limits.value->found_w, 650);
  EXPECT_EQ(limits.value->least_w, 300);
  EXPECT_EQ(limits.value->most_w, 600);
  EXPECT_EQ(client.clocks_hz(), (Range{900e6, 1500e6}));
  EXPECT_TRUE(client.set_power_limit(450));
  EXPECT_TRUE(client.lock_clocks(1.2e9, 1.2e9));
  const auto status = client.status();
  ASSERT_TRUE(status.value);
  const Json& card = status.value->at("cards").at(0);
  EXPECT_EQ(card.at("card"), DaemonWorld::kCard);
  EXPECT_EQ(card.at("lease").at("pid"), ::getpid());
  EXPECT_EQ(card.at("lease").at("limit_w"), 450);
  EXPECT_LE(card.at("lease").at("seconds_left"), 60);
  EXPECT_TRUE(card.at("trouble").is_null());
  client.request_power_limit(500);
  EXPECT_TRUE(client.end());
  EXPECT_TRUE(
      world.set().ends_with("limit 450\nclocks 1200 1200\nlimit 500\nlimit 650\nclocks free\n"))
      << world.set();
  EXPECT_EQ(world.set("second"), "limit 700\n");  // a trial of permission, at the start
  EXPECT_EQ(daemon.end(), 0);
  EXPECT_FALSE(std::filesystem::exists(world.socket()));
  EXPECT_FALSE(std::filesystem::exists(world.socket().string() + ".lock"));
}

TEST(PrivilegesServer, LeversAreFreedWhileTheLeaseGoesOn) {
  const DaemonWorld world;
  Daemon daemon(world, kAll);
  ASSERT_TRUE(daemon.started());
  Client client(world.socket());
  ASSERT_TRUE(client.open("GPU-aa").value);
  client.request_clocks(1.2e9);
  client.request_clocks(0);
  client.request_power_limit(400);
  client.request_power_limit(0);  // more than what is lent
  const auto status = client.status();
  EXPECT_TRUE(status.value->at("cards").at(0).at("lease").at("clock_mhz").is_null());
  EXPECT_TRUE(client.keep(60));
  EXPECT_FALSE(client.keep(61));
  EXPECT_TRUE(world.set().ends_with("clocks 1200 1200\nclocks free\nlimit 400\nlimit 650\n"))
      << world.set();
  client.request_clocks(1.6e9);
  EXPECT_TRUE(holds(client.end().reason, "clock_mhz 1600"));
}

TEST(PrivilegesServer, ALeaseThatRanOutIsNotKept) {
  const DaemonWorld world;
  Daemon daemon(world, "GPU-aa " + kOwn + " limit:300:600W lease:1s\n");
  ASSERT_TRUE(daemon.started());
  Client client(world.socket());
  EXPECT_FALSE(client.keep(1));
  ASSERT_TRUE(client.open("GPU-aa").value);
  ASSERT_TRUE(client.set_power_limit(400));
  ASSERT_TRUE(world.is_set("limit 400\nlimit 650\n"));
  EXPECT_TRUE(holds(client.keep(1).reason, "had run out"));
}

TEST(PrivilegesServer, RefusesWhatTheListDoesNotAllow) {
  const DaemonWorld world;
  Daemon daemon(world, kAll);
  ASSERT_TRUE(daemon.started());
  Client client(world.socket());
  EXPECT_TRUE(holds(client.set_power_limit(450).reason, "no card is lent"));
  ASSERT_TRUE(client.open(DaemonWorld::kCard).value);
  EXPECT_EQ(client.set_power_limit(299.9).reason, "limit_w 299.9; accepted: 300 to 600");
  EXPECT_EQ(client.set_power_limit(601).reason, "limit_w 601; accepted: 300 to 600");
  EXPECT_EQ(client.lock_clocks(8e8, 1.2e9).reason, "clock_mhz 800 to 1200; accepted: 900 to 1500");
  EXPECT_FALSE(client.lock_clocks(1.2e9, 1.6e9));
  Client other(world.socket());
  ASSERT_TRUE(other.open("GPU-bb").value);
  EXPECT_EQ(other.open("GPU-bb").value->most_w, 0);
  EXPECT_EQ(other.set_power_limit(450).reason, "limit_w 450; the list allows none");
  EXPECT_TRUE(holds(other.open("GPU-cc").status.reason, "allowed nothing of card \"GPU-cc\""));
  EXPECT_TRUE(holds(other.open("").status.reason, "needs card"));
  client.request_power_limit(100);
  EXPECT_TRUE(holds(client.end().reason, "limit_w 100"));
  EXPECT_FALSE(holds(world.set(), "limit 100"));
  EXPECT_FALSE(holds(world.set(), "clocks 8"));
}

TEST(PrivilegesServer, ProcessesThatTheListDoesNotNameAreSentAway) {
  const DaemonWorld world;
  Daemon daemon(world, "GPU-aa user:4242 limit:300:600W\nGPU-aa group:5151 limit:300:400W\n");
  ASSERT_TRUE(daemon.started());
  EXPECT_TRUE(holds(why_not(world), "is allowed nothing here")) << why_not(world);
  EXPECT_TRUE(soon([&] { return holds(world.log(), "was refused"); }));
  if (::geteuid() != 0) GTEST_SKIP() << "other users need root";
  ::chmod(world.socket().c_str(), 0666);
  const auto most = [&](double watts) {
    return [&world, watts] {
      Client client(world.socket());
      return client.offers().size() == 1 && client.open("GPU-aa").value->most_w == watts;
    };
  };
  EXPECT_EQ(as_user(4242, {}, most(600)), 0);
  EXPECT_EQ(as_user(4243, {7, 5151}, most(400)), 0);  // by a group beside its own
  EXPECT_EQ(as_user(4242, {5151}, most(600)), 0);     // the first line that matches
  EXPECT_EQ(as_user(5151, {}, most(400)), 0);         // its own group
  EXPECT_EQ(as_user(4243, {7}, [&] { return holds(why_not(world), "allowed nothing"); }), 0);
}

TEST(PrivilegesServer, ASocketThatMayNotBeOpenedIsToldInOneLine) {
  if (::geteuid() != 0) GTEST_SKIP() << "other users need root";
  const DaemonWorld world;
  Daemon daemon(world, kAll);
  ASSERT_TRUE(daemon.started());
  EXPECT_EQ(as_user(4242, {}, [&] { return holds(why_not(world), "Permission denied"); }), 0);
}

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

TEST(PrivilegesServer, OneClientHasACardAndTheOtherIsToldWho) {
  const DaemonWorld world;
  Daemon daemon(world, kAll);
  ASSERT_TRUE(daemon.started());
  Client first(world.socket()), second(world.socket());
  ASSERT_TRUE(first.open(DaemonWorld::kCard).value);
  const auto refused = second.open("GPU-aa");
  EXPECT_TRUE(holds(refused.status.reason, "process " + std::to_string(::getpid())))
      << refused.status.reason;
  EXPECT_TRUE(second.open("GPU-bb").value);  // another card
  EXPECT_TRUE(first.end());
  EXPECT_TRUE(second.open("GPU-aa").value);
}

TEST(PrivilegesServer, ALeaseRunsOutAndItsClientIsTold) {
  const DaemonWorld world;
  Daemon daemon(world, "GPU-aa " + kOwn + " limit:300:600W lease:1s\n");
  ASSERT_TRUE(daemon.started());
  Client client(world.socket());
  ASSERT_TRUE(client.open("GPU-aa").value);
  ASSERT_TRUE(client.set_power_limit(400));
  EXPECT_TRUE(world.is_set("limit 400\nlimit 650\n"));
  EXPECT_TRUE(holds(client.set_power_limit(400).reason, "its lease has run out"));
  ASSERT_TRUE(client.open("GPU-aa").value);
  EXPECT_TRUE(client.set_power_limit(410));
  EXPECT_TRUE(client.end());
}

TEST(PrivilegesServer, ACardIsPutBackWhenItsClientIsKilled) {
  const DaemonWorld world;
  Daemon daemon(world, kAll);
  ASSERT_TRUE(daemon.started());
  const int pid = hold(world);
  ASSERT_TRUE(world.is_set("limit 450\n")) << world.log();
  kill_and_wait(pid);
  EXPECT_TRUE(world.is_set("limit 450\nlimit 650\n"));
  Client client(world.socket());
  EXPECT_TRUE(client.open(DaemonWorld::kCard).value);
}

TEST(PrivilegesServer, ACardIsPutBackWhenTheServerIsKilledAndTheNextTakesItsPlace) {
  const DaemonWorld world;
  Daemon daemon(world, kAll);
  ASSERT_TRUE(daemon.started());
  Client client(world.socket());
  ASSERT_TRUE(client.open("GPU-aa").value);
  ASSERT_TRUE(client.set_power_limit(450));
  Client other(world.socket());  // whose guardian was forked when the first one's was there
  ASSERT_TRUE(other.open("GPU-bb").value);
  ASSERT_TRUE(other.lock_clocks(1e9, 1e9));
  EXPECT_TRUE(world.remembers());
  daemon.kill();
  EXPECT_TRUE(world.is_set("limit 450\nlimit 650\n")) << world.set();
  EXPECT_TRUE(world.is_set("clocks 1000 1000\nclocks free\n", "second")) << world.set("second");
  EXPECT_TRUE(soon([&] { return !world.remembers(); }));
  EXPECT_TRUE(holds(client.set_power_limit(400).reason, "has ended"));
  EXPECT_TRUE(std::filesystem::exists(world.socket()));  // nobody was left to remove it
  EXPECT_TRUE(holds(why_not(world), "Connection refused"));
  Daemon next(world, kAll);
  ASSERT_TRUE(next.started()) << world.log();
  Client again(world.socket());
  EXPECT_TRUE(again.open("GPU-aa").value);
}

int guardian_of(int server) {
  for (const auto& process : std::filesystem::directory_iterator("/proc")) {
    if (process.path().filename().string().find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    std::ifstream file(process.path() / "stat");
    std::string text;
    std::getline(file, text);
    const std::size_t name = text.find(") ");
    if (!holds(text, "(dfa-guardian) ")) continue;
    if (std::stoi(text.substr(name + 4)) == server) return std::stoi(process.path().filename());
  }
  return -1;
}

TEST(PrivilegesServer, ACardIsPutBackWhenItsGuardianIsKilledAndItsClientIsTold) {
  const DaemonWorld world;
  Daemon daemon(world, kAll);
  ASSERT_TRUE(daemon.started());
  Client client(world.socket());
  ASSERT_TRUE(client.open("GPU-aa").value);
  ASSERT_TRUE(client.set_power_limit(450));
  const int guardian = guardian_of(daemon.pid());
  ASSERT_GT(guardian, 0);
  ::kill(guardian, SIGKILL);
  EXPECT_TRUE(world.is_set("limit 450\nlimit 650\nlimit 650\n")) << world.set();
  EXPECT_TRUE(holds(client.set_power_limit(450).reason, "the process that guarded it has ended"));
  EXPECT_TRUE(client.open("GPU-aa").value);
  EXPECT_TRUE(client.set_power_limit(460));
}

TEST(PrivilegesServer, WhatWasLeftWhenServerAndGuardianWereKilledIsUndoneAtTheNextStart) {
  const DaemonWorld world;
  {
    Daemon daemon(world, kAll);
    ASSERT_TRUE(daemon.started());
    Client client(world.socket());
    ASSERT_TRUE(client.open("GPU-aa").value);
    ASSERT_TRUE(client.set_power_limit(450));
    const int guardian = guardian_of(daemon.pid());
    ASSERT_GT(guardian, 0);
    ::kill(daemon.pid(), SIGSTOP);  // it must not see that
    ::kill(guardian, SIGKILL);
    daemon.kill();
  }
  EXPECT_TRUE(world.remembers());
  EXPECT_TRUE(world.set().ends_with("limit 450\n"));
  Daemon next(world, kAll);
  ASSERT_TRUE(next.started()) << world.log();
  EXPECT_TRUE(world.set().ends_with("limit 450\nlimit 650\nlimit 650\n")) << world.set();
  EXPECT_FALSE(world.remembers());
}

TEST(PrivilegesServer, TheEndPutsEverythingBack) {
  const DaemonWorld world;
  Daemon daemon(world, kAll);
  ASSERT_TRUE(daemon.started());
  Client client(world.socket());
  ASSERT_TRUE(client.open("GPU-aa").value);
  ASSERT_TRUE(client.set_power_limit(450));
  EXPECT_EQ(daemon.end(), 0);
  EXPECT_TRUE(world.set().ends_with("limit 450\nlimit 650\n"));
  EXPECT_TRUE(holds(client.set_power_limit(450).reason, "has ended"));
}

TEST(PrivilegesServer, WhatCannotBePutBackIsToldAndTriedAgain) {
  const DaemonWorld world("clock real\nerror nvmlDeviceResetGpuLockedClocks 15\n");
  Daemon daemon(world, kAll);
  ASSERT_TRUE(daemon.started()) << world.log();
  Client client(world.socket());
  ASSERT_TRUE(client.open("GPU-aa").value);
  ASSERT_TRUE(client.lock_clocks(1e9, 1e9));
  EXPECT_TRUE(holds(client.end().reason, "GPU is lost")) << world.log();
  Client other(world.socket());
  EXPECT_TRUE(holds(other.open("GPU-aa").status.reason, "could not be put back yet"));
  const auto status = other.status();
  EXPECT_TRUE(status.value->at("cards").at(0).at("trouble").is_string());
  world.scenario("");  // the card is well again
  EXPECT_TRUE(soon([&] { return holds(world.log(), "was put back at last"); })) << world.log();
  EXPECT_TRUE(other.open("GPU-aa").value);
}

TEST(PrivilegesServer, AFullDiskRefusesTheChange) {
  const DaemonWorld world;
  Daemon daemon(world, kAll, [] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit little{30, 30};  // what a card was needs more
    ::setrlimit(RLIMIT_FSIZE, &little);
  });
  ASSERT_TRUE(daemon.started());
  Client client(world.socket());
  ASSERT_TRUE(client.open("GPU-aa").value);
  EXPECT_TRUE(holds(client.set_power_limit(450).reason, "cannot write"));
  EXPECT_EQ(world.set(), "limit 650\nlimit 650\n");
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

// As the guardians of a server that was killed do.
TEST(PrivilegesServer, TheStartWaitsForThoseWhoAreAboutToPutACardBack) {
  const DaemonWorld world;
  int held[2];
  ASSERT_EQ(::pipe(held), 0);
  const int pid = ::fork();
  if (pid == 0) {
    ::alarm(60);
    nvml::Guardian guardian;
    const bool holds_it = guardian.open("GPU-aa").value && guardian.set_power_limit(300);
    [[maybe_unused]] const auto told = ::write(held[1], holds_it ? "y" : "n", 1);
    ::usleep(300000);
    guardian.end();
    ::_exit(0);
  }
  char holds_it = '?';
  ASSERT_EQ(::read(held[0], &holds_it, 1), 1);
  ASSERT_EQ(holds_it, 'y');
  Daemon daemon(world, kAll);
  EXPECT_TRUE(daemon.started()) << world.log();
  EXPECT_TRUE(world.set().ends_with("limit 300\nlimit 650\nlimit 650\n")) << world.set();
  ::waitpid(pid, nullptr, 0);
  ::close(held[0]);
  ::close(held[1]);
}

TEST(PrivilegesServer, APathThatIsTakenIsRefused) {
  const DaemonWorld world;
  {
    Daemon daemon(world, kAll);
    ASSERT_TRUE(daemon.started());
    Daemon second(world, kAll);
    EXPECT_TRUE(soon([&] { return holds(world.log(), "is in use by process"); })) << world.log();
    Client client(world.socket());  // of the first, as before
  }
  world.tree.write("privileges.sock", "a file");
  Daemon third(world, kAll);
  EXPECT_FALSE(third.started());
  EXPECT_TRUE(holds(world.log(), "something else is there")) << world.log();
  EXPECT_EQ(read_file(world.socket()), "a file");
  std::filesystem::remove(world.socket());
  const Descriptor foreign(::socket(AF_UNIX, SOCK_STREAM, 0));
  const privileges::Listener listener(world.socket(), std::nullopt);
  Daemon fourth(world, kAll);
  EXPECT_FALSE(fourth.started());
  EXPECT_TRUE(holds(world.log(), "another program listens there")) << world.log();
  EXPECT_THROW(privileges::Listener("/" + std::string(200, 'x'), std::nullopt), InvalidArgument);
}

TEST(PrivilegesServer, AListThatNoCardCanKeepIsRefusedAtTheStart) {
  const DaemonWorld world;
  const std::pair<std::string, const char*> wrong[] = {
      {"GPU-aa user:1 limit:300:600W\nGPU-zz user:1 limit:300:600W\n", "allow:2: "},
      {"GPU-aa user:1 limit:100:150W\n",
       "allow:1: no limit of this range; this card takes 200 to 700 W"},
      {"GPU-aa user:1 limit:300:600W\n0000:3b:00.0 user:1 limit:300:500W\n",
       "allow:2: line 1 is for the same card and the same user"},
  };
  for (const auto& [allow, words] : wrong) {
    Daemon daemon(world, allow);
    EXPECT_FALSE(daemon.started());
    EXPECT_TRUE(holds(world.log(), words)) << world.log();
  }
  world.scenario("error nvmlDeviceSetPowerManagementLimit 4\n");
  Daemon daemon(world, kAll);
  EXPECT_FALSE(daemon.started());
  EXPECT_TRUE(holds(world.log(), "no permission")) << world.log();
  EXPECT_EQ(world.set(), "");
}

TEST(PrivilegesServer, ACardThatAnotherProgramHoldsIsNotLent) {
  const DaemonWorld world;
  Daemon daemon(world, kAll);
  ASSERT_TRUE(daemon.started());
  nvml::Guardian admin;
  ASSERT_TRUE(admin.open(DaemonWorld::kCard).value);
  Client client(world.socket());
  EXPECT_TRUE(holds(client.open("GPU-aa").status.reason, "another process holds"));
  EXPECT_TRUE(admin.end());
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
