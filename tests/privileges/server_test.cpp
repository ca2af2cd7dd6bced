// Who is lent what, by which list.
#include <sys/stat.h>

#include "privileges/server_clients.h"

namespace dfa::testing {
namespace {

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

// Whoever asks: a client that is not ours knows nothing of the card's clocks.
TEST(PrivilegesServer, AClockThatTheCardHasNotIsRefusedWithTheNearest) {
  const DaemonWorld world;
  Daemon daemon(world, kAll);
  ASSERT_TRUE(daemon.started());
  Client client(world.socket());
  ASSERT_TRUE(client.open(DaemonWorld::kCard).value);
  EXPECT_EQ(client.lock_clocks(1.201e9, 1.201e9).reason,
            "clocks: the card has no 1201 MHz; of its 345 to 1980 MHz 1200 is the nearest");
  const auto status = client.status();
  ASSERT_TRUE(status.value);
  EXPECT_TRUE(status.value->at("cards").at(0).at("lease").at("clock_mhz").is_null());
  client.request_clocks(1.499e9);
  EXPECT_TRUE(holds(client.end().reason, "no 1499 MHz"));
  EXPECT_FALSE(holds(world.set(), "clocks 1"));
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
      {"GPU-aa user:1 limit:300:600W\nGPU-bb user:1 clock:2000:3000MHz\n",
       "allow:2: clocks: the card has no clock from 2000 to 3000 MHz; of its 345 to 1980 MHz 1980"},
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
  nvml::RestoreDaemon admin;
  ASSERT_TRUE(admin.open(DaemonWorld::kCard).value);
  Client client(world.socket());
  EXPECT_TRUE(holds(client.open("GPU-aa").status.reason, "another process holds"));
  EXPECT_TRUE(admin.end());
  EXPECT_TRUE(client.open("GPU-aa").value);
}

}  // namespace
}  // namespace dfa::testing
