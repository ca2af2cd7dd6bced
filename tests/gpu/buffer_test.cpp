#include "gpu/buffer.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "gpu/fake_cuda_test_case.h"

namespace dfa::gpu {
namespace {

using BufferTest = testing::FakeCudaTest;

TEST_F(BufferTest, BytesGoInAcrossAndOut) {
  const Device& device = Device::get(0);
  const Stream stream(device);
  const Buffer first(device, 100), second(device, 100);
  std::vector<unsigned char> in(100), out(100);
  std::iota(in.begin(), in.end(), static_cast<unsigned char>(1));
  copy_in(stream, first.data(), in.data(), 100);
  copy(stream, second.data(), first.data(), 100);
  copy_out(stream, out.data(), second.data(), 100);
  stream.synchronize();
  EXPECT_EQ(out, in);
  fill(stream, second.data(), 0xff, 100);
  copy_out(stream, out.data(), second.data(), 100);
  EXPECT_EQ(out, std::vector<unsigned char>(100, 0xff));
}

TEST_F(BufferTest, OutOfMemoryNamesBothNumbersAndTheProcessGoesOn) {
  const Device& device = Device::get(0);
  const Buffer held(device, 1 << 19);
  try {
    allocate(device, 1 << 20);
    FAIL() << "a mebibyte of half a mebibyte";
  } catch (const OutOfMemory& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("1048576 bytes"), std::string::npos) << text;
    EXPECT_NE(text.find("free: 524288"), std::string::npos) << text;
  }
  EXPECT_EQ(fake().context_depth, 0u);
  const Buffer after(device, 1 << 18);
  EXPECT_NE(after.data(), nullptr);
}

TEST_F(BufferTest, GrowthIsTheMostHeldAtOnceOnTopOfWhatWasThere) {
  const Device& device = Device::get(0);
  const Buffer before(device, 1000);
  EXPECT_EQ(growth([&] {
              const Buffer first(device, 300);
              { const Buffer second(device, 50); }
              const Buffer third(device, 20);
            }),
            350u);
  EXPECT_EQ(growth([] {}), 0u);
}

TEST_F(BufferTest, NothingIsNull) {
  const Device& device = Device::get(0);
  const Stream stream(device);
  const Buffer nothing(device, 0);
  EXPECT_EQ(nothing.data(), nullptr);
  copy_in(stream, nullptr, nullptr, 0);
  copy_out(stream, nullptr, nullptr, 0);
  release(device, nullptr);
}

TEST_F(BufferTest, MovingLeavesOneOwner) {
  const Device& device = Device::get(0);
  Buffer first(device, 64);
  void* const memory = first.data();
  Buffer second(std::move(first));
  EXPECT_EQ(second.data(), memory);
  EXPECT_EQ(second.bytes(), 64u);
  second = Buffer(device, 32);
  EXPECT_EQ(fake().used_bytes, 32u);
}

}  // namespace
}  // namespace dfa::gpu
