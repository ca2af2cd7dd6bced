#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

#include "sensors/nvml/privileged_controls.h"
#include "sensors/nvml/restore_daemon.h"
#include "sensors/nvml_world.h"
#include "temp_dir.h"

namespace dfa::testing {
namespace {

// A card whose settings are a file, so that several processes see one card.
class NvmlOwner : public ::testing::Test {
 protected:
  NvmlOwner() { ::setenv("DFA_STATE_DIR", tree_.path().c_str(), 1); }
  ~NvmlOwner() override { ::unsetenv("DFA_STATE_DIR"); }

  std::string scenario(const std::string& more = "") const {
    return more + kCard + "limit 700\nlimits 200 700\nsettings " + settings().string() + "\n";
  }
  std::filesystem::path settings() const { return tree_.path() / "settings"; }
  std::string set() const {
    return std::filesystem::exists(settings()) ? read_file(settings()) : "";
  }
  std::filesystem::path memory() const { return tree_.path() / "dfa-card-0000-3b-00.0"; }

  bool ends_with(const std::string& text) const {
    for (int i = 0; i < 400; ++i) {
      if (set().ends_with(text)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  TempDir tree_;
};

TEST_F(NvmlOwner, LeversPutBackWhatTheyFound) {
  const NvmlWorld world(scenario());
  {
    auto opened = nvml::PrivilegedControls::open(world.card());
    ASSERT_TRUE(opened.levers) << opened.status.reason;
    EXPECT_EQ(opened.levers->limits().found_w, 700);
    EXPECT_EQ(opened.levers->limits().least_w, 200);
    EXPECT_TRUE(opened.levers->set_power_limit(450));
    EXPECT_TRUE(opened.levers->lock_clocks(1.0e9, 1.2e9));
    EXPECT_EQ(read_file(memory()), "power_limit_mw 700000 clocks_locked 1\n");
  }
  EXPECT_EQ(set(), "limit 700\nlimit 450\nclocks 1000 1200\nlimit 700\nclocks free\n");
  EXPECT_FALSE(std::filesystem::exists(memory()));
}

TEST_F(NvmlOwner, ALeverIsFreedWhileTheOtherIsHeld) {
  const NvmlWorld world(scenario());
  nvml::RestoreDaemon restorer;
  ASSERT_TRUE(restorer.open("0000:3b:00.0").value);
  EXPECT_TRUE(restorer.unlock_clocks());  // nothing to do
  restorer.request_power_limit(450);
  restorer.request_clocks(1.2e9);
  restorer.request_clocks(0);
  EXPECT_TRUE(restorer.unlock_clocks());
  EXPECT_EQ(set(), "limit 700\nlimit 450\nclocks 1200 1200\nclocks free\n");
  restorer.request_power_limit(0);
  EXPECT_TRUE(restorer.free_power_limit());
  EXPECT_TRUE(set().ends_with("clocks free\nlimit 700\n")) << set();
  EXPECT_TRUE(restorer.set_power_limit(300));
  EXPECT_TRUE(restorer.end());
  EXPECT_TRUE(set().ends_with("clocks free\nlimit 700\nlimit 300\nlimit 700\n")) << set();
}

TEST_F(NvmlOwner, WhatWasNotTurnedIsLeftAlone) {
  const NvmlWorld world(scenario());
  { ASSERT_TRUE(nvml::PrivilegedControls::open(world.card()).levers); }
  EXPECT_EQ(set(), "limit 700\n");  // what was set already: the trial of permission
}

TEST_F(NvmlOwner, ALimitThatTheCardDoesNotTakeIsRefusedWithItsRange) {
  const NvmlWorld world(scenario());
  auto opened = nvml::PrivilegedControls::open(world.card());
  ASSERT_TRUE(opened.levers);
  EXPECT_EQ(opened.levers->set_power_limit(100).reason,
            "power limit 100 W; this card takes 200 to 700 W");
  EXPECT_FALSE(opened.levers->lock_clocks(1.5e9, 1.2e9));
}

// NVML takes any, and runs another.
TEST_F(NvmlOwner, AClockThatTheCardHasNotIsRefusedWithTheNearest) {
  const NvmlWorld world(scenario());
  {
    auto opened = nvml::PrivilegedControls::open(world.card());
    ASSERT_TRUE(opened.levers);
    EXPECT_EQ(opened.levers->lock_clocks(1.201e9, 1.201e9).reason,
              "clocks: the card has no 1201 MHz; of its 345 to 1980 MHz 1200 is the nearest");
    EXPECT_EQ(opened.levers->lock_clocks(2e9, 3e9).reason,
              "clocks: the card has no clock from 2000 to 3000 MHz; of its 345 to 1980 MHz 1980 is "
              "the nearest");
    EXPECT_TRUE(opened.levers->lock_clocks(1.201e9, 1.22e9));  // 1215 MHz is there
  }
  EXPECT_EQ(set(), "limit 700\nclocks 1201 1220\nclocks free\n");
}

TEST_F(NvmlOwner, NoClockIsLockedOfACardThatDoesNotTellWhichItHas) {
  const NvmlWorld world(scenario("error nvmlDeviceGetSupportedGraphicsClocks 3\n"));
  auto opened = nvml::PrivilegedControls::open(world.card());
  ASSERT_TRUE(opened.levers);
  EXPECT_NE(opened.levers->lock_clocks(1.2e9, 1.2e9).reason.find("does not tell which it has"),
            std::string::npos);
  EXPECT_TRUE(opened.levers->set_power_limit(450));
  EXPECT_EQ(set(), "limit 700\nlimit 450\n");
}

TEST_F(NvmlOwner, WithoutPermissionNothingIsHeld) {
  const NvmlWorld world(scenario("error nvmlDeviceSetPowerManagementLimit 4\n"));
  const auto opened = nvml::PrivilegedControls::open(world.card());
  EXPECT_FALSE(opened.levers);
  EXPECT_EQ(opened.status.reason, "nvmlDeviceSetPowerManagementLimit: no permission");
  EXPECT_EQ(set(), "");
}

TEST_F(NvmlOwner, OneProcessAtATimeHoldsACard) {
  const NvmlWorld world(scenario());
  const auto first = nvml::PrivilegedControls::open(world.card());
  const auto second = nvml::PrivilegedControls::open(world.card());
  EXPECT_TRUE(first.levers);
  EXPECT_FALSE(second.levers);
  EXPECT_NE(second.status.reason.find("another process holds"), std::string::npos);
}

TEST_F(NvmlOwner, AFolderThatCannotBeWrittenRefusesTheLevers) {
  ::setenv("DFA_STATE_DIR", (tree_.path() / "nowhere").c_str(), 1);
  const NvmlWorld world(scenario());
  const auto opened = nvml::PrivilegedControls::open(world.card());
  EXPECT_FALSE(opened.levers);
  EXPECT_NE(opened.status.reason.find("DFA_STATE_DIR"), std::string::npos);
  EXPECT_EQ(set(), "");
}

// As after a kill of the program and its restore daemon both.
TEST_F(NvmlOwner, WhatAKilledRunLeftIsUndoneFirstAndIsNotTakenForFound) {
  tree_.write("dfa-card-0000-3b-00.0", "power_limit_mw 650000 clocks_locked 1\n");
  tree_.write("settings", "limit 300\nclocks 900 900\n");
  const NvmlWorld world(scenario());
  auto opened = nvml::PrivilegedControls::open(world.card());
  ASSERT_TRUE(opened.levers) << opened.status.reason;
  EXPECT_EQ(opened.levers->limits().found_w, 650);
  opened.levers.reset();
  EXPECT_EQ(set(), "limit 300\nclocks 900 900\nlimit 650\nclocks free\nlimit 650\n");
  EXPECT_FALSE(std::filesystem::exists(memory()));
}

TEST_F(NvmlOwner, WhatCouldNotBePutBackIsRemembered) {
  {
    const NvmlWorld world(scenario("error nvmlDeviceResetGpuLockedClocks 15\n"));
    auto opened = nvml::PrivilegedControls::open(world.card());
    ASSERT_TRUE(opened.levers);
    ASSERT_TRUE(opened.levers->lock_clocks(1.2e9, 1.2e9));
    EXPECT_FALSE(opened.levers->restore());
  }
  EXPECT_EQ(read_file(memory()), "power_limit_mw 700000 clocks_locked 1\n");
}

TEST_F(NvmlOwner, LeversThatWereGivenBackAreRefusedAndFreeForOthers) {
  const NvmlWorld world(scenario());
  auto opened = nvml::PrivilegedControls::open(world.card());
  ASSERT_TRUE(opened.levers);
  EXPECT_TRUE(opened.levers->restore());  // with nothing turned, and after a turn
  EXPECT_NE(opened.levers->set_power_limit(450).reason.find("given back"), std::string::npos);
  opened = nvml::PrivilegedControls::open(world.card());
  ASSERT_TRUE(opened.levers);
  ASSERT_TRUE(opened.levers->set_power_limit(450));
  EXPECT_TRUE(opened.levers->restore());
  EXPECT_NE(opened.levers->set_power_limit(450).reason.find("given back"), std::string::npos);
  EXPECT_NE(opened.levers->lock_clocks(1.2e9, 1.2e9).reason.find("given back"), std::string::npos);
  EXPECT_TRUE(set().ends_with("limit 450\nlimit 700\n"));
  EXPECT_FALSE(std::filesystem::exists(memory()));
  auto other = nvml::PrivilegedControls::open(world.card());
  ASSERT_TRUE(other.levers) << other.status.reason;
  opened.levers.reset();
  EXPECT_FALSE(
      nvml::PrivilegedControls::open(world.card()).levers);  // the other's lock is not undone
}

TEST_F(NvmlOwner, WhatAKilledRunLeftIsRememberedUntilItIsUndone) {
  tree_.write("dfa-card-0000-3b-00.0", "power_limit_mw 650000 clocks_locked 1\n");
  for (const char* function :
       {"nvmlDeviceSetPowerManagementLimit", "nvmlDeviceResetGpuLockedClocks"}) {
    const NvmlWorld world(scenario("error " + std::string(function) + " 15\n"));
    EXPECT_FALSE(nvml::PrivilegedControls::open(world.card()).levers);
    EXPECT_EQ(read_file(memory()), "power_limit_mw 650000 clocks_locked 1\n");
  }
  const NvmlWorld world(scenario());
  EXPECT_TRUE(nvml::PrivilegedControls::open(world.card()).levers);
  EXPECT_TRUE(set().ends_with("limit 650\nclocks free\nlimit 650\n")) << set();
}

// A disk without room: what a card was cannot be remembered, so that it is not changed.
TEST_F(NvmlOwner, AFullDiskRefusesTheChange) {
  const NvmlWorld world(scenario());
  auto opened = nvml::PrivilegedControls::open(world.card());
  ASSERT_TRUE(opened.levers);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit none{10, before.rlim_max};  // the text falls short
  ::setrlimit(RLIMIT_FSIZE, &none);
  const Verdict limit = opened.levers->set_power_limit(450);
  const Verdict clocks = opened.levers->lock_clocks(1.2e9, 1.2e9);
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_NE(limit.reason.find("cannot write"), std::string::npos) << limit.reason;
  EXPECT_NE(clocks.reason.find("cannot write"), std::string::npos) << clocks.reason;
  EXPECT_EQ(set(), "limit 700\n");
}

TEST_F(NvmlOwner, ARestoreDaemonSetsAndPutsBack) {
  const NvmlWorld world(scenario());
  nvml::RestoreDaemon restorer;
  const auto limits = restorer.open("0000:3b:00.0");
  ASSERT_TRUE(limits.value) << limits.status.reason;
  EXPECT_EQ(limits.value->found_w, 700);
  EXPECT_EQ(limits.value->most_w, 700);
  EXPECT_TRUE(restorer.set_power_limit(512.5));
  EXPECT_FALSE(restorer.set_power_limit(900));
  EXPECT_TRUE(restorer.lock_clocks(1.2e9, 1.2e9));
  restorer.request_power_limit(400);
  EXPECT_TRUE(restorer.end());
  EXPECT_EQ(set(), "limit 700\nlimit 512.5\nclocks 1200 1200\nlimit 400\nlimit 700\nclocks free\n");
}

TEST_F(NvmlOwner, ARestoreDaemonTellsWhatACardIsAndTakesNothing) {
  const NvmlWorld world(scenario());
  nvml::RestoreDaemon restorer;
  const auto known = restorer.identify("GPU-aa");
  ASSERT_TRUE(known.value) << known.status.reason;
  EXPECT_EQ(known.value->pci_id, "0000:3b:00.0");
  EXPECT_EQ(known.value->uuid, "GPU-aa");
  EXPECT_EQ(known.value->name, "H200");
  EXPECT_EQ(known.value->limits.least_w, 200);
  EXPECT_FALSE(restorer.identify("GPU-bb").value);
  EXPECT_FALSE(restorer.set_power_limit(300));  // which were not taken
  EXPECT_TRUE(restorer.end());
  EXPECT_EQ(set(), "");
}

// A second restore daemon is forked while the connection to the first is open.
TEST_F(NvmlOwner, ARestoreDaemonKeepsNothingOpenButItsConnection) {
  const NvmlWorld world(scenario());
  nvml::RestoreDaemon first;
  const nvml::RestoreDaemon second;
  ASSERT_TRUE(first.identify("GPU-aa").value);  // it lives, and has loaded the library
  for (const nvml::RestoreDaemon* one : {&std::as_const(first), &second}) {
    const std::string folder = "/proc/" + std::to_string(one->pid()) + "/fd";
    const auto sockets = [&] {
      int count = 0;
      for (const auto& fd : std::filesystem::directory_iterator(folder)) {
        std::error_code gone;
        const auto target = std::filesystem::read_symlink(fd.path(), gone).string();
        count += std::stoi(fd.path().filename()) > 2 && target.starts_with("socket:") ? 1 : 0;
      }
      return count;
    };
    for (int i = 0; i < 400 && sockets() != 1; ++i) {  // the second has just begun
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(sockets(), 1);
  }
}

TEST_F(NvmlOwner, ADriverThatHangsIsToldAndItsLateAnswersAreNotTakenForOthers) {
  const NvmlWorld world("latency nvmlDeviceSetGpuLockedClocks 0.7\nclock real\n" +
                        scenario().substr(kCard.find("card ")));
  nvml::RestoreDaemon restorer(0.2);
  ASSERT_TRUE(restorer.open("0000:3b:00.0").value);
  EXPECT_EQ(restorer.lock_clocks(1.2e9, 1.2e9).reason, "the driver did not answer for 0.2 s");
  EXPECT_FALSE(restorer.set_power_limit(300));
  std::this_thread::sleep_for(std::chrono::milliseconds(800));
  EXPECT_NE(restorer.set_power_limit(100).reason.find("this card takes"), std::string::npos);
  EXPECT_TRUE(restorer.set_power_limit(400));
  EXPECT_TRUE(restorer.end());
  EXPECT_TRUE(ends_with("clocks 1200 1200\nlimit 300\nlimit 400\nlimit 700\nclocks free\n"))
      << set();
}

TEST_F(NvmlOwner, ARefusalThatNobodyWaitedForIsToldAtTheEnd) {
  const NvmlWorld world(scenario());
  nvml::RestoreDaemon restorer;
  ASSERT_TRUE(restorer.open("0000:3b:00.0").value);
  restorer.request_power_limit(100);
  restorer.request_power_limit(300);
  EXPECT_NE(restorer.end().reason.find("this card takes 200 to 700 W"), std::string::npos);
  EXPECT_TRUE(ends_with("limit 300\nlimit 700\n"));
}

TEST_F(NvmlOwner, AnUnknownCardAndNoCardAreReasons) {
  const NvmlWorld world(scenario());
  nvml::RestoreDaemon restorer;
  EXPECT_FALSE(restorer.set_power_limit(300));
  EXPECT_NE(restorer.open("0000:99:00.0").status.reason.find("0000:99:00.0"), std::string::npos);
  EXPECT_TRUE(restorer.end());
}

TEST_F(NvmlOwner, ThatTheRestoreDaemonIsGoneIsToldAndTheNextRunPutsTheCardBack) {
  const NvmlWorld world(scenario());
  {
    nvml::RestoreDaemon restorer;
    ASSERT_TRUE(restorer.open("0000:3b:00.0").value);
    ASSERT_TRUE(restorer.set_power_limit(300));
    restorer.request_power_limit(300);  // an answer that lies there is no end
    EXPECT_TRUE(restorer.keep(60));
    ::kill(restorer.pid(), SIGKILL);
    ::waitid(P_PID, static_cast<id_t>(restorer.pid()), nullptr, WEXITED | WNOWAIT);
    EXPECT_NE(restorer.keep(60).reason.find("has ended"), std::string::npos);
    EXPECT_NE(restorer.end().reason.find("has ended"), std::string::npos);
  }
  EXPECT_TRUE(set().ends_with("limit 300\n"));
  nvml::RestoreDaemon next;
  ASSERT_TRUE(next.open("0000:3b:00.0").value);
  EXPECT_TRUE(next.end());
  EXPECT_TRUE(set().ends_with("limit 700\nlimit 700\n"));
}

// The process that holds a restore daemon ends by a signal, one that it cannot catch among them.
class RestoreDaemonOutlives : public NvmlOwner, public ::testing::WithParamInterface<int> {};

TEST_P(RestoreDaemonOutlives, AndPutsTheCardBack) {
  const NvmlWorld world(scenario());
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const int pid = ::fork();
  if (pid == 0) {
    ::alarm(60);  // outlives no test that failed
    nvml::RestoreDaemon restorer;
    const bool held = restorer.open("0000:3b:00.0").value && restorer.set_power_limit(300) &&
                      restorer.lock_clocks(1.2e9, 1.2e9);
    [[maybe_unused]] const auto told = ::write(ready[1], held ? "y" : "n", 1);
    if (GetParam() == SIGABRT) ::signal(SIGABRT, SIG_DFL);
    for (;;) ::pause();
  }
  char held = '?';
  ASSERT_EQ(::read(ready[0], &held, 1), 1);
  ASSERT_EQ(held, 'y');
  ASSERT_TRUE(set().ends_with("clocks 1200 1200\n"));
  ::kill(pid, GetParam());
  ::waitpid(pid, nullptr, 0);
  EXPECT_TRUE(ends_with("limit 700\nclocks free\n")) << set();
  for (int i = 0; i < 400 && std::filesystem::exists(memory()); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE(std::filesystem::exists(memory()));
  ::close(ready[0]);
  ::close(ready[1]);
}

INSTANTIATE_TEST_SUITE_P(Signals, RestoreDaemonOutlives,
                         ::testing::Values(SIGTERM, SIGINT, SIGKILL, SIGHUP, SIGABRT));

}  // namespace
}  // namespace dfa::testing
