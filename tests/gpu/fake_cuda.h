#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

// A CUDA driver without a GPU: device memory is memory, kernels do nothing but are remembered, and
// any call can be told to fail. It is loaded as the real one is, by the name in DFA_CUDA_DRIVER.
namespace dfa::testing {

struct FakeLaunch {
  std::string kernel;
  CUlaunchConfig config{};
  std::map<CUlaunchAttributeID, CUlaunchAttributeValue> attributes;
  std::array<unsigned char, 16> argument{};  // the beginning of the first one
};

struct FakeCuda {
  // How it answers; tests change these.
  int version = 13000;
  int devices = 3;        // of compute capability 9.0, 8.0, 7.5
  std::string missing{};  // a function it does not have
  std::string failing_call{};
  CUresult failure = CUDA_SUCCESS;  // what that call returns, until one of them is sticky
  std::size_t memory_bytes = 1 << 20;
  // Not 0: the caller's context is a green one, of so many multiprocessors of the first device.
  unsigned part_sms = 0;

  // What it has seen.
  std::size_t used_bytes = 0;
  int contexts = 0;                                        // retained
  int streams = 0, events = 0, libraries = 0, graphs = 0;  // alive
  std::vector<FakeLaunch> launches{};
  int calls = 0;      // of pointers, contexts and launches: those a queued pass is made of
  int most_smem = 0;  // as set for the last kernel
  std::size_t context_depth = 0;  // of the calling thread
  CUresult lost = CUDA_SUCCESS;   // the sticky error, once there was one
};

// The bytes of a cubin that the fake takes. It has the kernels "first" and "second", and the one
// whose mangled name, "_Z…", is given.
inline std::string fake_cubin(const std::string& arch, const std::string& mangled = "") {
  return "\177ELF " + arch + " " + mangled;
}

}  // namespace dfa::testing
