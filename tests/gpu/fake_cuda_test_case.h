#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <span>
#include <string>

#include "base/shared_library.h"
#include "gpu/fake_cuda.h"

namespace dfa::testing {

class FakeCudaTest : public ::testing::Test {
 protected:
  static FakeCuda& fake() {
    static const std::string name = DFA_FAKE_CUDA;
    static const SharedLibrary library = SharedLibrary::open_first(std::span(&name, 1));
    return *reinterpret_cast<FakeCuda* (*)()>(library.symbol("fake_cuda"))();
  }

  // Before the process asks for its driver the first time.
  FakeCudaTest() {
    ::setenv("DFA_CUDA_DRIVER", DFA_FAKE_CUDA, 1);
    const int contexts = fake().contexts;
    fake() = FakeCuda();
    fake().contexts = contexts;
  }

  // Every test gives back what it took.
  void TearDown() override {
    EXPECT_EQ(fake().used_bytes, 0u);
    EXPECT_EQ(fake().streams, 0);
    EXPECT_EQ(fake().events, 0);
    EXPECT_EQ(fake().libraries, 0);
    EXPECT_EQ(fake().graphs, 0);
    EXPECT_EQ(fake().context_depth, 0u);
  }
};

}  // namespace dfa::testing
