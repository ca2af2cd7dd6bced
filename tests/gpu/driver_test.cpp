#include "gpu/driver.h"

#include <gtest/gtest.h>

#include "gpu/device.h"
#include "gpu/fake_cuda_test_case.h"

namespace dfa::gpu {
namespace {

using DriverTest = testing::FakeCudaTest;

std::string reason_with(const std::string& library = DFA_FAKE_CUDA) {
  Driver driver;
  const Verdict verdict = open_driver(library, driver);
  EXPECT_EQ(verdict.ok, verdict.reason.empty());
  return verdict.reason;
}

TEST_F(DriverTest, ADriverWithDevicesIsThere) {
  EXPECT_EQ(reason_with(), "");
  EXPECT_TRUE(available());
  EXPECT_EQ(driver_version(), 13000);
}

TEST_F(DriverTest, NoDriverIsAReasonThatNamesTheLibrary) {
  const std::string reason = reason_with("libdfa_is_not_there.so.1");
  EXPECT_NE(reason.find("no NVIDIA driver"), std::string::npos) << reason;
  EXPECT_NE(reason.find("libdfa_is_not_there.so.1"), std::string::npos) << reason;
}

TEST_F(DriverTest, AnotherLibraryIsNoDriver) {
  EXPECT_NE(reason_with("libc.so.6").find("'libc.so.6' is no NVIDIA driver"), std::string::npos);
}

TEST_F(DriverTest, AnOldDriverIsToldItsVersionAndTheOneNeeded) {
  fake().version = 11080;
  const std::string reason = reason_with();
  EXPECT_NE(reason.find("CUDA 11.8"), std::string::npos) << reason;
  EXPECT_NE(reason.find("at least 12.0"), std::string::npos) << reason;
}

TEST_F(DriverTest, AMissingFunctionIsNamed) {
  fake().missing = "cuLaunchKernelEx";
  EXPECT_NE(reason_with().find("lacks cuLaunchKernelEx"), std::string::npos);
}

TEST_F(DriverTest, NoDeviceIsSaidInBothWaysTheDriverSaysIt) {
  fake().devices = 0;
  EXPECT_NE(reason_with().find("no device"), std::string::npos);
  fake().devices = 1;
  fake().failing_call = "cuInit";
  fake().failure = CUDA_ERROR_NO_DEVICE;
  EXPECT_NE(reason_with().find("no device"), std::string::npos);
}

TEST_F(DriverTest, ADriverThatDoesNotStartGivesItsOwnText) {
  fake().failing_call = "cuInit";
  fake().failure = CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
  EXPECT_NE(reason_with().find("does not start: CUDA_ERROR_FAKE (as the test asked)"),
            std::string::npos);
}

}  // namespace
}  // namespace dfa::gpu
