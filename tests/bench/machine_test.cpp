#include "bench/machine.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace dfa::bench {
namespace {

TEST(Machine, ItsToolchainNamesAFolderThatKernelsComeFrom) {
  ::unsetenv("DFA_KERNEL_SOURCES");
  EXPECT_EQ(describe_machine(1).toolchain.find("GPU kernels"), std::string::npos);
  ::setenv("DFA_KERNEL_SOURCES", "/a/folder", 1);
  EXPECT_NE(describe_machine(1).toolchain.find(", GPU kernels with files of '/a/folder'"),
            std::string::npos);
  ::unsetenv("DFA_KERNEL_SOURCES");
}

}  // namespace
}  // namespace dfa::bench
