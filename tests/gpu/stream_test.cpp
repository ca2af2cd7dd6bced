#include "gpu/stream.h"

#include <gtest/gtest.h>

#include "gpu/error.h"
#include "gpu/event.h"
#include "gpu/fake_cuda_test_case.h"
#include "gpu/graph.h"
#include "gpu/kernel.h"

namespace dfa::gpu {
namespace {

using StreamTest = testing::FakeCudaTest;

struct Arguments {
  long long first = 7;
  long long second = 9;
};

Kernel first_kernel() {
  return Library(Device::get(0), testing::fake_cubin("sm_90a")).kernel("first");
}

TEST_F(StreamTest, OurOwnEndsWithItsObjectAForeignOneDoesNot) {
  const Device& device = Device::get(0);
  {
    Stream own(device);
    Stream moved(std::move(own));
    EXPECT_EQ(fake().streams, 1);
    const Stream foreign = Stream::foreign(device, moved.handle());
    EXPECT_EQ(foreign.handle(), moved.handle());
  }
  EXPECT_EQ(fake().streams, 0);
  Stream::foreign(device, nullptr).synchronize();
}

TEST_F(StreamTest, WaitingReportsWhatWentWrongBefore) {
  const Stream stream(Device::get(0));
  fake().failing_call = "cuStreamSynchronize";
  fake().failure = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  try {
    stream.synchronize();
    FAIL();
  } catch (const DriverError& error) {
    EXPECT_EQ(error.code(), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    EXPECT_FALSE(error.sticky());
    EXPECT_NE(std::string(error.what()).find("cuStreamSynchronize: CUDA_ERROR_FAKE"),
              std::string::npos);
  }
  fake().failing_call.clear();
  stream.synchronize();
}

TEST_F(StreamTest, EventsMeasureWhatRanBetweenThem) {
  const Device& device = Device::get(0);
  const Stream stream(device), other(device);
  Event start(device), stop(device);
  EXPECT_THROW(elapsed_ms(start, stop), DriverError);
  start.record(stream);
  for (int i = 0; i < 4; ++i) launch(first_kernel(), {}, stream, Arguments{});
  stop.record(stream);
  other.wait(stop);
  stop.synchronize();
  EXPECT_TRUE(stop.done());
  EXPECT_DOUBLE_EQ(elapsed_ms(start, stop), 1.0);
  fake().failing_call = "cuEventQuery";
  fake().failure = CUDA_ERROR_NOT_READY;
  EXPECT_FALSE(stop.done());
}

TEST_F(StreamTest, AGraphReplaysWhatWasRecorded) {
  const Stream stream(Device::get(0));
  const Kernel kernel = first_kernel();
  const Graph graph = Graph::capture(stream, [&] {
    EXPECT_TRUE(stream.capturing());
    launch(kernel, {.grid = {3}}, stream, Arguments{});
    launch(kernel, {.grid = {5}}, stream, Arguments{});
  });
  EXPECT_FALSE(stream.capturing());
  EXPECT_TRUE(fake().launches.empty());
  graph.launch(stream);
  graph.launch(stream);
  ASSERT_EQ(fake().launches.size(), 4u);
  EXPECT_EQ(fake().launches[0].config.gridDimX, 3u);
  EXPECT_EQ(fake().launches[3].config.gridDimX, 5u);
}

TEST_F(StreamTest, ARecordingEndsWhenTheWorkThrows) {
  const Stream stream(Device::get(0));
  EXPECT_THROW(Graph::capture(stream, [] { throw InvalidArgument("in the middle"); }),
               InvalidArgument);
  EXPECT_FALSE(stream.capturing());
  EXPECT_EQ(fake().graphs, 0);
  fake().failing_call = "cuGraphInstantiateWithFlags";
  fake().failure = CUDA_ERROR_OUT_OF_MEMORY;
  EXPECT_THROW(Graph::capture(stream, [] {}), OutOfMemory);
}

TEST_F(StreamTest, TheLegacyDefaultStreamCannotBeRecorded) {
  const Stream stream = Stream::foreign(Device::get(0), nullptr);
  EXPECT_THROW(Graph::capture(stream, [] {}), DriverError);
}

}  // namespace
}  // namespace dfa::gpu
