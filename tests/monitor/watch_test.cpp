#include "monitor/watch.h"

#include "monitor/metrics.h"
#include "sensors/nvml_world.h"

namespace dfa::testing {
namespace {

using nvml::Gauge;

const std::string kTwoCards =
    "clock virtual\n"
    "card H200 GPU-aa 00000000:3B:00.0\n"
    "power constant 300\n"
    "limit 650\ntemperature 61 70\nclocks 1.65e9 3.2e9\nutilization 99 40\nused 2147483648\n"
    "events 4\nthrottled 0.5\ngpm 30\n"
    "card Old\"name GPU-bb 00000000:5E:00.0\n"
    "power constant 0\nreset 5\n";

TEST(Watch, ReadsEverySensorOfEveryCard) {
  NvmlWorld world(kTwoCards);
  monitor::Watch watch({}, world);
  world.sleep_s(2);
  const auto cards = watch.look();
  ASSERT_EQ(cards.size(), 2u);
  EXPECT_EQ(value_of(cards[0], Gauge::power_average), 300);
  EXPECT_EQ(value_of(cards[0], Gauge::temperature), 61);
  EXPECT_EQ(value_of(cards[0], Gauge::sm_clock), 1.65e9);
  EXPECT_EQ(value_of(cards[0], Gauge::tensor_active), 35);
  EXPECT_EQ(value_of(cards[1], Gauge::power), std::nullopt);
  EXPECT_NE(cards[1].missing.at(Gauge::power).find("no measurement"), std::string::npos);
}

TEST(Watch, JoulesAndHeldDownSecondsAreSinceTheStart) {
  NvmlWorld world(kTwoCards);
  world.sleep_s(50);
  monitor::Watch watch({"GPU-aa"}, world);
  EXPECT_EQ(watch.look()[0].energy_j, 0);
  world.sleep_s(10);
  const auto card = watch.look()[0];
  EXPECT_NEAR(*card.energy_j, 3000, 31);
  EXPECT_NEAR(*card.power_capped_s, 5, 0.01);
}

TEST(Watch, ACounterThatStartsAnewGoesOnFromWhereItWas) {
  NvmlWorld world(
      "clock virtual\ncard H200 GPU-aa 00000000:3B:00.0\npower constant 300\nreset 5\n");
  monitor::Watch watch({}, world);
  double last = 0;
  for (int i = 0; i < 12; ++i) {
    const auto energy = watch.look()[0].energy_j;
    ASSERT_TRUE(energy);
    EXPECT_GE(*energy, last);
    last = *energy;
    world.sleep_s(1);
  }
  EXPECT_NEAR(last, 11 * 300, 700);  // what was used around the reset is not known
}

TEST(Watch, NoLibraryAndAnUnknownCardAreReasons) {
  {
    NvmlWorld world(kTwoCards);
    EXPECT_THROW(monitor::Watch({"0000:99:00.0"}, world), Unsupported);
  }
  NvmlWorld empty("clock virtual\n");
  EXPECT_THROW(monitor::Watch({}, empty), Unsupported);
}

TEST(Metrics, AreNamedAndScaledAsThoseOfDcgm) {
  NvmlWorld world(kTwoCards);
  monitor::Watch watch({}, world);
  watch.look();
  world.sleep_s(2);
  const std::string text = monitor::to_metrics(watch.look(), "box");
  const std::string card =
      "{gpu=\"0\",UUID=\"GPU-aa\",pci_bus_id=\"0000:3b:00.0\",device=\"nvidia0\","
      "modelName=\"H200\",Hostname=\"box\"} ";
  for (const char* line : {"DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_SM_CLOCK"}) {
    EXPECT_EQ(text.find(line), text.rfind(std::string("# HELP ") + line + " ") + 7) << line;
  }
  const auto has = [&](const std::string& name, const std::string& value) {
    EXPECT_NE(text.find(name + card + value + "\n"), std::string::npos) << name << "\n" << text;
  };
  has("DCGM_FI_DEV_POWER_USAGE", "300");
  has("DCGM_FI_DEV_POWER_MGMT_LIMIT", "650");
  has("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "600000");
  has("DCGM_FI_DEV_GPU_TEMP", "61");
  has("DCGM_FI_DEV_MEMORY_TEMP", "70");
  has("DCGM_FI_DEV_SM_CLOCK", "1650");
  has("DCGM_FI_DEV_GPU_UTIL", "99");
  has("DCGM_FI_DEV_FB_USED", "2048");
  has("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "4");
  has("DCGM_FI_DEV_POWER_VIOLATION", "1000000");
  has("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "0.35000000000000003");
}

TEST(Metrics, WhatIsNotMeasuredIsLeftOutAndSaysWhy) {
  NvmlWorld world(kTwoCards);
  monitor::Watch watch({"GPU-bb"}, world);
  const std::string text = monitor::to_metrics(watch.look(), "box");
  EXPECT_EQ(text.find("DCGM_FI_DEV_POWER_USAGE{"), std::string::npos);
  EXPECT_NE(text.find("modelName=\"Old\\\"name\""), std::string::npos);
  EXPECT_NE(text.find("sensor=\"nvml:power_average\",reason=\"the driver says 0 W"),
            std::string::npos);
}

}  // namespace
}  // namespace dfa::testing
