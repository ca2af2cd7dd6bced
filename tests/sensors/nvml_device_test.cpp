#include <gtest/gtest.h>

#include "sensors/nvml/device.h"
#include "sensors/nvml_world.h"
#include "temp_dir.h"

namespace dfa::nvml {
namespace {

using testing::kCard;
using testing::NvmlWorld;

const std::string kTwoCards =
    "card A100 GPU-aa 00000000:3B:00.0\nlimit 400\npersistence 0\nminor 3\n"
    "card H200 GPU-bb 00000000:5E:00.0\nlimit 700\n";

TEST(NvmlDevice, IsFoundByPciIdOrUuidWhateverItsPlaceInTheList) {
  const NvmlWorld world(kTwoCards);
  EXPECT_EQ(world.card("0000:5e:00.0").facts().name, "H200");
  EXPECT_EQ(world.card("GPU-bb").facts().name, "H200");
  EXPECT_EQ(world.card("0000:3b:00.0").facts().name, "A100");
  const auto none = find_device(world.library, "0000:99:00.0");
  EXPECT_FALSE(none.value);
  EXPECT_NE(none.status.reason.find("'0000:99:00.0'"), std::string::npos);
  EXPECT_NE(none.status.reason.find("not found"), std::string::npos);
}

TEST(NvmlDevice, TellsTheClocksThatItHas) {
  const NvmlWorld world(kCard + "sm_clocks 345 1980 15\n");
  const auto clocks = world.card().sm_clocks_hz();
  ASSERT_TRUE(clocks.value) << clocks.status.reason;
  EXPECT_EQ(clocks.value->size(), 110u);
  EXPECT_EQ(clocks.value->front(), 345e6);
  EXPECT_EQ(clocks.value->back(), 1980e6);
  const NvmlWorld old(kCard, "nvmlDeviceGetSupportedGraphicsClocks");
  EXPECT_NE(old.card().sm_clocks_hz().status.reason.find("missing in this version"),
            std::string::npos);
}

TEST(NvmlDevice, TellsItsFactsAndItsPciIdAsCudaWritesIt) {
  const NvmlWorld world(kTwoCards);
  const DeviceFacts facts = world.card("GPU-aa").facts();
  EXPECT_EQ(facts.uuid, "GPU-aa");
  EXPECT_EQ(facts.pci_id, "0000:3b:00.0");
  EXPECT_EQ(facts.driver, "580.1");
  EXPECT_EQ(facts.index, 0);
  EXPECT_EQ(facts.minor, 3);
  EXPECT_EQ(world.card("GPU-bb").facts().index, 1);
  EXPECT_EQ(world.card("GPU-bb").facts().minor, 1);
  const DeviceSettings settings = world.card("GPU-aa").settings();
  EXPECT_DOUBLE_EQ(settings.power_limit_w.value(), 400);
  EXPECT_EQ(settings.persistence, false);
  EXPECT_FALSE(settings.mig);
}

TEST(NvmlDevice, AFactThatIsNotToldIsEmptyNotZero) {
  const NvmlWorld world(kCard + "error nvmlDeviceGetEnforcedPowerLimit 3\n" +
                        "error nvmlDeviceGetPersistenceMode 4\nerror nvmlDeviceGetMigMode 3\n" +
                        "error nvmlDeviceGetIndex 3\nerror nvmlDeviceGetMinorNumber 3\n");
  const DeviceSettings settings = world.card().settings();
  EXPECT_FALSE(settings.power_limit_w);
  EXPECT_FALSE(settings.persistence);
  EXPECT_FALSE(settings.mig);
  EXPECT_FALSE(world.card().facts().index);
  EXPECT_FALSE(world.card().facts().minor);
}

TEST(NvmlDevice, AllCardsAreListed) {
  const NvmlWorld world(kTwoCards);
  const auto devices = list_devices(world.library);
  ASSERT_EQ(devices.value.value().size(), 2u);
  EXPECT_EQ((*devices.value)[1].value.value().facts().name, "H200");
}

TEST(NvmlDevice, OneThatIsCountedAndDoesNotAnswerIsListedWithTheReasonInItsPlace) {
  const NvmlWorld world(
      "card A100 GPU-aa 00000000:3B:00.0\nlost 0\ncard H200 GPU-bb 00000000:5E:00.0\n");
  const auto devices = list_devices(world.library);
  ASSERT_EQ(devices.value.value().size(), 2u);
  EXPECT_FALSE((*devices.value)[0].value);
  EXPECT_NE((*devices.value)[0].status.reason.find("the GPU is lost"), std::string::npos);
  EXPECT_EQ((*devices.value)[1].value.value().facts().index, 1);
}

TEST(NvmlDevice, WhatMayChangeIsReadAnew) {
  const testing::TempDir tree;
  const std::string file = tree.write("settings", "limit 500\n").string();
  const NvmlWorld world(kCard + "settings " + file + "\n");
  const Device card = world.card();
  EXPECT_DOUBLE_EQ(card.settings().power_limit_w.value(), 500);
  tree.write("settings", "limit 350\nmig 1\n");
  EXPECT_DOUBLE_EQ(card.settings().power_limit_w.value(), 350);
  EXPECT_TRUE(card.settings().mig);
}

TEST(NvmlDevice, AMigInstanceIsRefusedWithTheReason) {
  const NvmlWorld world(kCard);
  const auto instance = find_device(world.library, "MIG-1234");
  EXPECT_FALSE(instance.value);
  EXPECT_NE(instance.status.reason.find("whole cards only"), std::string::npos);
}

TEST(NvmlDevice, OthersProgramsOnTheCardAreCounted) {
  const NvmlWorld world(kCard + "process 17\nprocess own\nprocess 18\n");
  const auto processes = world.card().compute_processes();
  ASSERT_TRUE(processes.value) << processes.status.reason;
  EXPECT_TRUE(processes.value->own);
  EXPECT_EQ(processes.value->foreign(true), 2);
  EXPECT_EQ(processes.value->foreign(false), 2);
}

TEST(NvmlDevice, InAContainerTheOwnContextIsTakenForOneOfTheList) {
  const NvmlWorld world(kCard + "process 40001\nprocess 40002\n");
  const auto processes = world.card().compute_processes();
  EXPECT_FALSE(processes.value->own);
  EXPECT_EQ(processes.value->foreign(true), 1);
  EXPECT_EQ(processes.value->foreign(false), 2);
}

TEST(NvmlDevice, ALongListOfProgramsIsReadWhole) {
  std::string scenario = kCard;
  for (int i = 0; i < 100; ++i) scenario += "process " + std::to_string(100000 + i) + "\n";
  const NvmlWorld world(scenario);
  EXPECT_EQ(world.card().compute_processes().value->pids.size(), 100u);
}

TEST(NvmlDevice, AFieldThatFailsAloneIsNoNumber) {
  const NvmlWorld world(kCard + "field_error 186 3\n");
  EXPECT_FALSE(world.card().field(186).value);
  EXPECT_EQ(world.card().field(186).status.reason, "NVML field 186: not supported by this device");
  EXPECT_TRUE(world.card().field(185).value);
  EXPECT_FALSE(world.card().field(9999).value);
}

}  // namespace
}  // namespace dfa::nvml
