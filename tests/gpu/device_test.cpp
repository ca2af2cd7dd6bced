#include "gpu/device.h"

#include <gtest/gtest.h>

#include "gpu/buffer.h"
#include "gpu/fake_cuda_test_case.h"

namespace dfa::gpu {
namespace {

using DeviceTest = testing::FakeCudaTest;

TEST_F(DeviceTest, FactsAreTheDriversInOurUnits) {
  const DeviceFacts& facts = Device::get(0).facts();
  EXPECT_EQ(facts.index, 0);
  EXPECT_EQ(facts.name, "Fake 90");
  EXPECT_EQ(facts.pci_id, "0000:3b:00.0");
  EXPECT_EQ(facts.capability, 90);
  EXPECT_EQ(facts.sm_count, 132);
  EXPECT_EQ(facts.clock_khz, 1980000);
  EXPECT_EQ(facts.smem_per_block_bytes, 232448);
  EXPECT_EQ(facts.smem_per_sm_bytes, 233472);
  EXPECT_EQ(facts.registers_per_sm, 65536);
  EXPECT_EQ(facts.threads_per_sm, 2048);
  EXPECT_EQ(facts.l2_bytes, 50u << 20);
  EXPECT_EQ(facts.memory_bytes, 1u << 20);
}

TEST_F(DeviceTest, HopperAndLaterCompileForTheirOwnInstructions) {
  EXPECT_EQ(Device::get(0).facts().arch(), "sm_90a");
  EXPECT_EQ(Device::get(1).facts().arch(), "sm_80");
  EXPECT_EQ((DeviceFacts{.capability = 75}.arch()), "sm_75");
  EXPECT_EQ((DeviceFacts{.capability = 120}.arch()), "sm_120a");
}

TEST_F(DeviceTest, AnIndexOutsideIsToldWhatIsThere) {
  EXPECT_EQ(Device::count(), 3);
  for (const int index : {-1, 3}) {
    try {
      Device::get(index);
      FAIL() << index;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("accepted: 0 to 2"), std::string::npos);
    }
  }
}

TEST_F(DeviceTest, TheCurrentDeviceIsThatOfTheThreadsContext) {
  EXPECT_EQ(Device::current_index(), 0);
  const Scope scope(Device::get(1));
  EXPECT_EQ(Device::current_index(), 1);
}

TEST_F(DeviceTest, OfAPartOfADeviceItsMultiprocessorsMayBeUsed) {
  EXPECT_EQ(Device::get(0).usable_sms(), 132);
  fake().part_sms = 16;
  EXPECT_EQ(Device::get(0).usable_sms(), 16);
  EXPECT_EQ(Device::get(1).usable_sms(), 132);  // the part is another device's
}

// Its default stream is its own: what is queued there must not go to the device's.
TEST_F(DeviceTest, APartOfADeviceStaysCurrent) {
  fake().part_sms = 16;
  {
    const Scope part(Device::get(0));
    EXPECT_EQ(fake().context_depth, 0u);
    const Scope other(Device::get(1));
    EXPECT_EQ(fake().context_depth, 1u);
  }
  fake().part_sms = 0;
  const Scope whole(Device::get(0));
  EXPECT_EQ(fake().context_depth, 1u);
  const Scope again(Device::get(0));
  EXPECT_EQ(fake().context_depth, 1u);
}

// Before the next test, which is the first to use that device.
TEST_F(DeviceTest, FactsNeedNoContext) {
  const int before = fake().contexts;
  EXPECT_EQ(Device::get(2).facts().name, "Fake 75");
  EXPECT_FALSE(Device::get(2).holds(&before));
  EXPECT_EQ(fake().contexts, before);
}

TEST_F(DeviceTest, TheContextIsRetainedOnceAndAskedForAgainAfterAFailure) {
  const Device& device = Device::get(2);
  EXPECT_EQ(&Device::get(2), &device);
  const int before = fake().contexts;
  fake().failing_call = "cuDevicePrimaryCtxRetain";
  fake().failure = CUDA_ERROR_OUT_OF_MEMORY;
  for (int tries = 0; tries < 2; ++tries) EXPECT_THROW(Scope{device}, OutOfMemory);
  EXPECT_EQ(fake().context_depth, 0u);
  fake().failing_call.clear();
  for (int uses = 0; uses < 2; ++uses) {
    const Scope scope(device);
    EXPECT_EQ(fake().context_depth, 1u);
  }
  EXPECT_EQ(fake().contexts, before + 1);
}

TEST_F(DeviceTest, AScopePutsTheCallersContextBack) {
  {
    const Scope outer(Device::get(1));
    {
      const Scope inner(Device::get(0));
      EXPECT_EQ(fake().context_depth, 2u);
    }
    EXPECT_EQ(fake().context_depth, 1u);
  }
  EXPECT_EQ(fake().context_depth, 0u);
}

TEST_F(DeviceTest, MemoryFollowsWhatIsAllocated) {
  const Device& device = Device::get(0);
  const Buffer buffer(device, 4096);
  EXPECT_EQ(device.memory().total_bytes, 1u << 20);
  EXPECT_EQ(device.memory().free_bytes, (1u << 20) - 4096);
}

TEST_F(DeviceTest, APointerIsOfItsDeviceOrOfNone) {
  const Device& device = Device::get(0);
  const Buffer buffer(device, 64);
  int host = 0;
  const Device& other = Device::get(1);
  EXPECT_TRUE(device.holds(buffer.data()));
  EXPECT_TRUE(device.holds(static_cast<const char*>(buffer.data()) + 63));
  EXPECT_FALSE(device.holds(static_cast<const char*>(buffer.data()) + 64));
  EXPECT_FALSE(other.holds(buffer.data()));
  EXPECT_FALSE(device.holds(&host));
  EXPECT_FALSE(device.holds(nullptr));
}

}  // namespace
}  // namespace dfa::gpu
