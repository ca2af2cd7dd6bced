#include <gtest/gtest.h>

#include "sensors/nvml/library.h"
#include "sensors/nvml/meters.h"
#include "sensors/nvml_world.h"

namespace dfa::nvml {
namespace {

using testing::kCard;
using testing::NvmlWorld;

TEST(NvmlLibrary, IsLoadedFromTheFileThatTheEnvironmentNames) {
  const NvmlWorld world(kCard + "\ndriver 580.159.04\n");
  ASSERT_TRUE(world.status) << world.status.reason;
  EXPECT_EQ(world.library->file(), DFA_FAKE_NVML_LIBRARY);
  EXPECT_EQ(world.library->driver_version(), "580.159.04");
  EXPECT_EQ(world.library->version(), "13.580.159.04");
}

TEST(NvmlLibrary, IsShutDownWhenNobodyHoldsItAnyMore) {
  NvmlWorld world(kCard);
  {
    const sensors::MeterSet power = open_meter(world.card(), Gauge::power, world);
    world.library.reset();
    EXPECT_TRUE(world.initialised());
    EXPECT_TRUE(power.meters.at(0)->read());
  }
  EXPECT_FALSE(world.initialised());
}

TEST(NvmlLibrary, AbsenceIsAReasonThatNamesTheFile) {
  ::setenv("DFA_NVML", "libnvidia-ml-is-not-here.so.1", 1);
  const OpenedLibrary opened = open_library();
  ::unsetenv("DFA_NVML");
  EXPECT_EQ(opened.library, nullptr);
  EXPECT_NE(opened.status.reason.find("libnvidia-ml-is-not-here.so.1"), std::string::npos);
}

TEST(NvmlLibrary, AnotherLibraryUnderItsNameIsAReason) {
  ::setenv("DFA_NVML", "libm.so.6", 1);
  const OpenedLibrary opened = open_library();
  ::unsetenv("DFA_NVML");
  EXPECT_EQ(opened.library, nullptr);
  EXPECT_EQ(opened.status.reason, "NVML: nvmlInit_v2 is missing in this version of NVML");
}

struct InitError {
  int status;
  const char* says;
};

TEST(NvmlLibrary, AFailedStartSaysWhyInWords) {
  const InitError errors[] = {{9, "driver is not loaded"},
                              {17, "operating system blocks"},
                              {18, "different versions"},
                              {4711, "status 4711"}};
  for (const InitError& error : errors) {
    const NvmlWorld world("error nvmlInit_v2 " + std::to_string(error.status) + "\n");
    EXPECT_EQ(world.library, nullptr);
    EXPECT_NE(world.status.reason.find(error.says), std::string::npos) << world.status.reason;
  }
}

// Everything that is read from a card, through one function after another missing or failing.
std::string reasons_of_all_gauges(const NvmlWorld& world, int& working) {
  std::string reasons;
  working = 0;
  const Value<Device> card = find_device(world.library, "GPU-aa");
  if (!card.value) return card.status.reason;
  for (const GaugeInfo& info : gauges()) {
    const sensors::MeterSet set = open_meter(*card.value, info.gauge, world);
    EXPECT_NE(set.empty(), set.status.ok) << info.name;
    working += set.empty() ? 0 : 1;
    reasons += set.status.reason + "\n";
  }
  const auto processes = card.value->compute_processes();
  EXPECT_EQ(processes.value.has_value(), processes.status.ok);
  return reasons + processes.status.reason;
}

TEST(NvmlLibrary, EveryFunctionMayBeMissingAndNoneTakesMoreThanItsOwnWithIt) {
  int all = 0;
  {
    const NvmlWorld world(kCard + "gpm 50\nnvlink 18 18\n");
    reasons_of_all_gauges(world, all);
    EXPECT_EQ(all, static_cast<int>(gauges().size()));
  }
  Api names;
  for_each_function(names, [&](const auto& function) {
    const std::string name = function.name;
    const NvmlWorld world(kCard + "gpm 50\nnvlink 18 18\n", name);
    if (name == "nvmlInit_v2") {
      EXPECT_EQ(world.library, nullptr);
      return;
    }
    ASSERT_NE(world.library, nullptr) << name;
    int working = 0;
    const std::string reasons = reasons_of_all_gauges(world, working);
    const bool told = reasons.find(name + " is missing") != std::string::npos;
    EXPECT_EQ(told, working < all || name == "nvmlDeviceGetComputeRunningProcesses_v3") << name;
    // Fields take ten gauges away (one of them has an older call), GPM three, others two at most.
    EXPECT_GE(working, name == "nvmlDeviceGetHandleByUUID" ? 0 : all - 9) << name;
  });
}

TEST(NvmlLibrary, EveryFunctionMayFailAndTheStatusIsTold) {
  Api names;
  for_each_function(names, [&](const auto& function) {
    const std::string name = function.name;
    const NvmlWorld world(kCard + "gpm 50\nnvlink 18 18\nerror " + name + " 15\n");
    if (name == "nvmlInit_v2") return;
    ASSERT_NE(world.library, nullptr) << name;
    int working = 0;
    const std::string reasons = reasons_of_all_gauges(world, working);
    if (working == static_cast<int>(gauges().size())) return;
    EXPECT_NE(reasons.find(name + ": the GPU is lost"), std::string::npos) << name << reasons;
  });
}

}  // namespace
}  // namespace dfa::nvml
