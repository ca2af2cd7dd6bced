#include "monitor/watch.h"

#include <gtest/gtest.h>

#include "monitor/metrics.h"
#include "sensors/nvml_world.h"
#include "temp_dir.h"

namespace dfa::testing {
namespace {

using sensors::Gauge;

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
  EXPECT_EQ(growth_of(watch.look()[0], Gauge::energy), 0);
  world.sleep_s(10);
  const auto card = watch.look()[0];
  EXPECT_NEAR(growth_of(card, Gauge::energy).value(), 3000, 31);
  EXPECT_NEAR(growth_of(card, Gauge::power_capped).value(), 5, 0.01);
}

TEST(Watch, ACounterThatStartsAnewGoesOnFromWhereItWasAndTheGapIsTold) {
  NvmlWorld world(
      "clock virtual\ncard H200 GPU-aa 00000000:3B:00.0\npower constant 300\nreset 5\n");
  monitor::Watch watch({}, world);
  double last = 0;
  int silent = 0;
  for (int i = 0; i < 12; ++i) {
    const auto energy = growth_of(watch.look()[0], Gauge::energy);
    silent += energy ? 0 : 1;  // an older sum is not told again as if it were today's
    EXPECT_GE(energy.value_or(last), last);
    last = energy.value_or(last);
    world.sleep_s(1);
  }
  EXPECT_EQ(silent, 1);
  EXPECT_NEAR(last, 11 * 300, 700);  // what was used around the reset is not known
  const auto card = watch.look()[0];
  EXPECT_EQ(card.growth.at(Gauge::energy).breaks, 1);
  EXPECT_NE(card.growth.at(Gauge::energy).break_reason.find("went back"), std::string::npos);
  EXPECT_NE(monitor::to_metrics(std::vector{card}, "box").find("dfa_counter_breaks{"),
            std::string::npos);
}

TEST(Watch, ACounterThatSaysNothingHasNoSum) {
  NvmlWorld world(
      "clock virtual\nerror nvmlDeviceGetTotalEnergyConsumption 10 0\n"
      "card H200 GPU-aa 00000000:3B:00.0\npower constant 300\nlost 5 6\n");
  monitor::Watch watch({}, world);
  world.sleep_s(1);
  EXPECT_TRUE(growth_of(watch.look()[0], Gauge::energy));
  world.sleep_s(4.5);
  EXPECT_FALSE(growth_of(watch.look()[0], Gauge::energy));
}

TEST(Watch, ACardThatIsCountedAndDoesNotAnswerIsMissingUntilItDoes) {
  NvmlWorld world(
      "clock virtual\n"
      "card H200 GPU-aa 00000000:3B:00.0\nlost 0 3\n"
      "card H200 GPU-bb 00000000:5E:00.0\nlost 6 9\n");
  monitor::Watch watch({}, world);
  auto cards = watch.look();
  ASSERT_EQ(cards.size(), 2u);
  EXPECT_NE(cards[0].status.reason.find("the GPU is lost"), std::string::npos);
  EXPECT_EQ(name_of(cards[0]), "GPU 0");
  EXPECT_TRUE(cards[1].status);
  std::string text = monitor::to_metrics(cards, "box");
  EXPECT_NE(
      text.find("dfa_card_missing{gpu=\"0\",UUID=\"\",pci_bus_id=\"\",device=\"\",modelName=\"\","
                "Hostname=\"box\",reason=\"nvmlDeviceGetHandleByIndex_v2: the GPU is lost"),
      std::string::npos)
      << text;
  world.sleep_s(4);
  cards = watch.look();
  EXPECT_TRUE(cards[0].status) << cards[0].status.reason;
  EXPECT_EQ(cards[0].facts.uuid, "GPU-aa");
  EXPECT_EQ(monitor::to_metrics(cards, "box").find("dfa_card_missing"), std::string::npos);
  world.sleep_s(3);
  cards = watch.look();
  EXPECT_TRUE(cards[0].status);
  EXPECT_FALSE(cards[1].status);
  EXPECT_EQ(name_of(cards[1]), "GPU 1 (0000:5e:00.0)");  // known from before
  text = monitor::to_metrics(cards, "box");
  EXPECT_NE(text.find("dfa_card_missing{gpu=\"1\",UUID=\"GPU-bb\""), std::string::npos) << text;
  EXPECT_FALSE(growth_of(cards[1], Gauge::energy));
  world.sleep_s(3);
  cards = watch.look();
  EXPECT_TRUE(cards[1].status);
  EXPECT_EQ(cards[1].growth.at(Gauge::energy).breaks, 1);
}

TEST(Watch, ASensorThatFailedAtTheStartIsTriedAgain) {
  NvmlWorld world(
      "clock virtual\nerror nvmlDeviceGetTemperature 10 2\n"
      "error nvmlDeviceGetTotalEnergyConsumption 10 2\n"
      "card H200 GPU-aa 00000000:3B:00.0\npower constant 300\n");
  monitor::Watch watch({}, world);
  EXPECT_NE(watch.look()[0].missing.at(Gauge::temperature).find("timed out"), std::string::npos);
  world.sleep_s(3);
  EXPECT_EQ(value_of(watch.look()[0], Gauge::temperature), 40);
  world.sleep_s(2);
  EXPECT_NEAR(growth_of(watch.look()[0], Gauge::energy).value(), 600, 31);
}

TEST(Watch, TheLimitAndMigModeAreThoseOfTheMoment) {
  const TempDir tree;
  const std::string file = tree.write("settings", "limit 500\n").string();
  NvmlWorld world("clock virtual\ncard H200 GPU-aa 00000000:3B:00.0\nsettings " + file + "\n");
  monitor::Watch watch({}, world);
  EXPECT_EQ(watch.look()[0].settings.power_limit_w, 500);
  EXPECT_TRUE(value_of(watch.look()[0], Gauge::power));
  tree.write("settings", "limit 350\nmig 1\n");
  const auto card = watch.look()[0];
  EXPECT_EQ(card.settings.power_limit_w, 350);
  EXPECT_NE(card.missing.at(Gauge::power).find("MIG"), std::string::npos);
  EXPECT_FALSE(growth_of(card, Gauge::energy));
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

TEST(Metrics, LabelsAreNvmlsIndexAndTheMinorNumberWhateverWasChosen) {
  NvmlWorld world(
      "clock virtual\ncard H200 GPU-aa 00000000:3B:00.0\nminor 4\n"
      "card H200 GPU-bb 00000000:5E:00.0\nminor 7\ncard H200 GPU-cc 00000000:7E:00.0\nminor 0\n");
  for (const char* chosen : {"GPU-bb", "0000:5e:00.0"}) {
    monitor::Watch watch({"GPU-cc", chosen}, world);
    const std::string text = monitor::to_metrics(watch.look(), "box");
    EXPECT_NE(
        text.find("{gpu=\"1\",UUID=\"GPU-bb\",pci_bus_id=\"0000:5e:00.0\",device=\"nvidia7\","),
        std::string::npos)
        << text;
    EXPECT_NE(
        text.find("{gpu=\"2\",UUID=\"GPU-cc\",pci_bus_id=\"0000:7e:00.0\",device=\"nvidia0\","),
        std::string::npos)
        << text;
  }
}

TEST(Metrics, ACardThatIsNamedTwiceIsOne) {
  NvmlWorld world(kTwoCards);
  monitor::Watch watch({"GPU-aa", "0000:3b:00.0", "GPU-aa"}, world);
  EXPECT_EQ(watch.look().size(), 1u);
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
