#include "gpu/kernel.h"

#include <gtest/gtest.h>

#include <cstring>

#include "gpu/buffer.h"
#include "gpu/error.h"
#include "gpu/fake_cuda_test_case.h"

namespace dfa::gpu {
namespace {

using KernelTest = testing::FakeCudaTest;

struct Arguments {
  long long first = 7;
  long long second = 9;
};

Kernel kernel_named(const char* name) {
  return Library(Device::get(0), testing::fake_cubin("sm_90a")).kernel(name);
}

TEST_F(KernelTest, FactsAndOccupancyAreTheDrivers) {
  const Kernel kernel = kernel_named("second");
  EXPECT_EQ(kernel.facts().registers, 168);
  EXPECT_EQ(kernel.facts().local_bytes, 8);
  EXPECT_EQ(kernel.facts().static_smem_bytes, 1024);
  EXPECT_EQ(kernel.facts().max_threads, 384);
  EXPECT_EQ(kernel.blocks_per_sm(384, 100 << 10), 2);
}

TEST_F(KernelTest, TheCodeStaysLoadedWhileAKernelLives) {
  {
    const Kernel kernel = kernel_named("first");
    const Kernel copy = kernel;
    EXPECT_EQ(fake().libraries, 1);
  }
  EXPECT_EQ(fake().libraries, 0);
}

TEST_F(KernelTest, CodeForAnotherArchitectureIsUnsupportedAndSaysWhere) {
  try {
    Library(Device::get(1), testing::fake_cubin("sm_90a"));
    FAIL();
  } catch (const Unsupported& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("Fake 80 (sm_80)"), std::string::npos) << text;
    EXPECT_NE(text.find("another architecture"), std::string::npos) << text;
  }
}

TEST_F(KernelTest, BytesThatAreNoCubinAndNamesThatAreNotThere) {
  EXPECT_THROW(Library(Device::get(0), std::string("hello")), InvalidArgument);
  EXPECT_THROW(Library(Device::get(0), {}), InvalidArgument);
  EXPECT_THROW(kernel_named("third"), InvalidArgument);
}

TEST_F(KernelTest, SharedMemoryIsWithinTheDevicesLimit) {
  const Kernel kernel = kernel_named("first");
  kernel.allow_smem(232448 - 1024);
  EXPECT_EQ(fake().most_smem, 232448 - 1024);
  EXPECT_THROW(kernel.allow_smem(232448), InvalidArgument);
  EXPECT_THROW(kernel.allow_smem(-1), InvalidArgument);
}

TEST_F(KernelTest, ALaunchCarriesShapeStreamArgumentsAndAttributes) {
  const Stream stream(Device::get(0));
  launch(kernel_named("second"),
         {.grid = {4, 3, 2},
          .block = {384},
          .smem_bytes = 2048,
          .cluster = {2},
          .overlaps_previous = true},
         stream, Arguments{});
  ASSERT_EQ(fake().launches.size(), 1u);
  const testing::FakeLaunch& seen = fake().launches[0];
  EXPECT_EQ(seen.kernel, "second");
  EXPECT_EQ(seen.config.gridDimX * 100 + seen.config.gridDimY * 10 + seen.config.gridDimZ, 432u);
  EXPECT_EQ(seen.config.blockDimX, 384u);
  EXPECT_EQ(seen.config.sharedMemBytes, 2048u);
  EXPECT_EQ(seen.config.hStream, stream.handle());
  ASSERT_EQ(seen.attributes.size(), 2u);
  EXPECT_EQ(seen.attributes.at(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION).clusterDim.x, 2u);
  EXPECT_EQ(seen.attributes.at(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
                .programmaticStreamSerializationAllowed,
            1);
  Arguments copied;
  std::memcpy(&copied, seen.argument.data(), sizeof copied);
  EXPECT_EQ(copied.first, 7);
  EXPECT_EQ(copied.second, 9);
}

// Its graphs have no such launches. In a process of its own, which asks for the driver anew.
TEST_F(KernelTest, ADriverBefore12_3IsNotAskedToOverlap) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  fake().version = 12020;
  EXPECT_EXIT(
      {
        launch(kernel_named("second"), {.cluster = {2}, .overlaps_previous = true},
               Stream(Device::get(0)), Arguments{});
        const auto& attributes = fake().launches.at(0).attributes;
        std::exit(attributes.size() == 1 &&
                          attributes.contains(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
                      ? 0
                      : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(KernelTest, APlainLaunchHasNoAttributes) {
  launch(kernel_named("first"), {}, Stream(Device::get(0)), Arguments{});
  EXPECT_TRUE(fake().launches.at(0).attributes.empty());
}

TEST_F(KernelTest, AWrongShapeIsNamedAndNothingIsLost) {
  const Stream stream(Device::get(0));
  const Kernel kernel = kernel_named("first");
  try {
    launch(kernel, {.grid = {8}, .block = {2048}}, stream, Arguments{});
    FAIL();
  } catch (const DriverError& error) {
    EXPECT_FALSE(error.sticky());
    EXPECT_NE(std::string(error.what()).find("grid 8x1x1, block 2048x1x1"), std::string::npos)
        << error.what();
  }
  launch(kernel, {}, stream, Arguments{});
}

TEST_F(KernelTest, AStickyErrorSaysThatTheProcessHasLostTheDevice) {
  const Device& device = Device::get(0);
  const Buffer held(device, 64);
  const Stream stream(device);
  const Kernel kernel = kernel_named("first");
  fake().failing_call = "cuStreamSynchronize";
  fake().failure = CUDA_ERROR_ILLEGAL_ADDRESS;
  launch(kernel, {}, stream, Arguments{});
  for (int i = 0; i < 2; ++i) {
    try {
      i == 0 ? stream.synchronize() : launch(kernel, {}, stream, Arguments{});
      FAIL();
    } catch (const DriverError& error) {
      EXPECT_TRUE(error.sticky());
      const std::string text = error.what();
      EXPECT_NE(text.find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << text;
      EXPECT_NE(text.find("cannot use the device any more"), std::string::npos) << text;
    }
  }
  EXPECT_THROW(Buffer(device, 64), DriverError);
}

}  // namespace
}  // namespace dfa::gpu
