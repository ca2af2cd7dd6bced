// A card is put back, whoever is killed.
#include <sys/resource.h>
#include <sys/stat.h>

#include "privileges/server_clients.h"

namespace dfa::testing {
namespace {

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
  Client other(world.socket());  // whose restore daemon was forked when the first one's was there
  ASSERT_TRUE(other.open("GPU-bb").value);
  ASSERT_TRUE(other.lock_clocks(1.2e9, 1.2e9));
  EXPECT_TRUE(world.remembers());
  daemon.kill();
  EXPECT_TRUE(world.is_set("limit 450\nlimit 650\n")) << world.set();
  EXPECT_TRUE(world.is_set("clocks 1200 1200\nclocks free\n", "second")) << world.set("second");
  EXPECT_TRUE(soon([&] { return !world.remembers(); }));
  EXPECT_TRUE(holds(client.set_power_limit(400).reason, "has ended"));
  EXPECT_TRUE(std::filesystem::exists(world.socket()));  // nobody was left to remove it
  EXPECT_TRUE(holds(why_not(world), "Connection refused"));
  Daemon next(world, kAll);
  ASSERT_TRUE(next.started()) << world.log();
  Client again(world.socket());
  EXPECT_TRUE(again.open("GPU-aa").value);
}

TEST(PrivilegesServer, ACardIsPutBackWhenItsRestoreDaemonIsKilledAndItsClientIsTold) {
  const DaemonWorld world;
  Daemon daemon(world, kAll);
  ASSERT_TRUE(daemon.started());
  Client client(world.socket());
  ASSERT_TRUE(client.open("GPU-aa").value);
  ASSERT_TRUE(client.set_power_limit(450));
  const int restorer = restorer_of(daemon.pid());
  ASSERT_GT(restorer, 0);
  ::kill(restorer, SIGKILL);
  EXPECT_TRUE(world.is_set("limit 450\nlimit 650\nlimit 650\n")) << world.set();
  EXPECT_TRUE(holds(client.set_power_limit(450).reason, "the process that guarded it has ended"));
  EXPECT_TRUE(client.open("GPU-aa").value);
  EXPECT_TRUE(client.set_power_limit(460));
}

TEST(PrivilegesServer, WhatWasLeftWhenServerAndRestoreDaemonWereKilledIsUndoneAtTheNextStart) {
  const DaemonWorld world;
  {
    Daemon daemon(world, kAll);
    ASSERT_TRUE(daemon.started());
    Client client(world.socket());
    ASSERT_TRUE(client.open("GPU-aa").value);
    ASSERT_TRUE(client.set_power_limit(450));
    const int restorer = restorer_of(daemon.pid());
    ASSERT_GT(restorer, 0);
    ::kill(daemon.pid(), SIGSTOP);  // it must not see that
    ::kill(restorer, SIGKILL);
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
  ASSERT_TRUE(client.lock_clocks(1.2e9, 1.2e9));
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

// As the restore daemons of a server that was killed do.
TEST(PrivilegesServer, TheStartWaitsForThoseWhoAreAboutToPutACardBack) {
  const DaemonWorld world;
  int held[2];
  ASSERT_EQ(::pipe(held), 0);
  const int pid = ::fork();
  if (pid == 0) {
    ::alarm(60);
    nvml::RestoreDaemon restorer;
    const bool holds_it = restorer.open("GPU-aa").value && restorer.set_power_limit(300);
    [[maybe_unused]] const auto told = ::write(held[1], holds_it ? "y" : "n", 1);
    ::usleep(300000);
    restorer.end();
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

}  // namespace
}  // namespace dfa::testing
