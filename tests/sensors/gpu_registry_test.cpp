#include <gtest/gtest.h>

#include "sensors/gpu/registry.h"
#include "sensors/nvml_world.h"
#include "sensors/system_clock.h"

namespace dfa::sensors {
namespace {

TEST(GpuSensors, FindAndListTheCardsOfEveryLibrary) {
  const testing::NvmlWorld world(testing::kCard +
                                 "card H200 GPU-bb 00000000:5E:00.0\npower constant 200\n");
  const GpuSensors gpus;
  ASSERT_TRUE(gpus.status()) << gpus.status().reason;
  ASSERT_EQ(gpus.descriptions().size(), 1u);
  EXPECT_NE(gpus.descriptions()[0].find("NVML"), std::string::npos);
  const auto listed = gpus.list();
  ASSERT_TRUE(listed.value) << listed.status.reason;
  ASSERT_EQ(listed.value->size(), 2u);
  for (std::size_t i = 0; i < listed.value->size(); ++i) {
    const auto& card = (*listed.value)[i];
    ASSERT_TRUE(card.value) << card.status.reason;
    const auto found = gpus.find((*card.value)->facts().pci_id);
    const auto there = gpus.at(static_cast<int>(i));
    ASSERT_TRUE(found.value && there.value);
    EXPECT_EQ((*found.value)->facts().uuid, (*card.value)->facts().uuid);
    EXPECT_EQ((*there.value)->facts().uuid, (*card.value)->facts().uuid);
  }
  EXPECT_FALSE(gpus.at(static_cast<int>(listed.value->size())).value);
  EXPECT_FALSE(gpus.find("GPU-of-nobody").value);
  EXPECT_FALSE(gpus.find("GPU-of-nobody").status.reason.empty());
}

TEST(GpuSensors, WithoutALibraryEverythingSaysWhy) {
  ::setenv("DFA_NVML", "libnvidia-ml-is-not-here.so.1", 1);
  const GpuSensors gpus;
  EXPECT_FALSE(gpus.status());
  EXPECT_TRUE(gpus.descriptions().empty());
  EXPECT_EQ(gpus.list().status.reason, gpus.status().reason);
  EXPECT_EQ(gpus.at(0).status.reason, gpus.status().reason);
  const auto card = find_card("0000:3b:00.0");
  EXPECT_EQ(card.status.reason, gpus.status().reason);
  const SystemClock clock;
  const MeterSet set = open_meter(card, Gauge::power, clock);
  EXPECT_TRUE(set.empty());
  EXPECT_EQ(set.status.reason, gpus.status().reason);
  ::unsetenv("DFA_NVML");
}

}  // namespace
}  // namespace dfa::sensors
