#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

// Facts about this machine, read from /proc, /sys and /etc.
namespace dfa::sensors {

// Where to read; tests point these at made-up trees.
struct HostRoots {
  std::filesystem::path proc = "/proc";
  std::filesystem::path sys = "/sys";
  std::filesystem::path etc = "/etc";
};

// The real roots, with the sysfs root of DFA_SYSFS_ROOT.
HostRoots host_roots();

// Empty strings and zeros where the machine does not tell.
struct HostFacts {
  std::string hostname;
  std::string cpu_model;
  std::string os;
  std::string kernel;
  int threads = 0;  // logical processors that this process may run on
  bool virtual_machine = false;
  std::int64_t l1d_bytes = 0;  // of processor 0
  std::int64_t l2_bytes = 0;
  std::int64_t l3_bytes = 0;
  std::int64_t memory_bytes = 0;
};

HostFacts read_host_facts(const HostRoots& roots = host_roots());

// What a new allocation may take without swapping: the kernel's MemAvailable, or what is left of
// the control group's limit if that is less. Zero where unknown.
std::int64_t available_memory_bytes(const HostRoots& roots = host_roots());

}  // namespace dfa::sensors
