#include "sensors/host.h"

#include <gtest/gtest.h>

#include "sensors/fakes.h"
#include "sensors/host_meters.h"
#include "temp_dir.h"

namespace dfa::sensors {
namespace {

using testing::FakeClock;
using testing::TempDir;

HostRoots roots_of(const TempDir& tree) {
  return {.proc = tree.path() / "proc", .sys = tree.path() / "sys", .etc = tree.path() / "etc"};
}

TEST(Host, ReadsTheFactsOfAMachine) {
  TempDir tree;
  tree.write("proc/cpuinfo",
             "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu hypervisor avx2\n");
  tree.write("proc/meminfo", "MemTotal:       16 kB\nMemFree: 1 kB\nMemAvailable:   8 kB\n");
  tree.write("proc/sys/kernel/hostname", "box\n");
  tree.write("proc/sys/kernel/osrelease", "6.1.0\n");
  tree.write("etc/os-release", "NAME=\"X\"\nPRETTY_NAME=\"Some Linux 12\"\n");
  const std::string cache = "sys/devices/system/cpu/cpu0/cache/";
  const char* indices[][3] = {{"1", "Data", "48K"},
                              {"1", "Instruction", "32K"},
                              {"2", "Unified", "2048K"},
                              {"3", "Unified", "36M"}};
  for (int i = 0; i < 4; ++i) {
    const std::string folder = cache + "index" + std::to_string(i) + "/";
    tree.write(folder + "level", indices[i][0]);
    tree.write(folder + "type", indices[i][1]);
    tree.write(folder + "size", indices[i][2]);
  }
  const HostFacts facts = read_host_facts(roots_of(tree));
  EXPECT_EQ(facts.cpu_model, "Some CPU @ 2 GHz");
  EXPECT_EQ(facts.hostname, "box");
  EXPECT_EQ(facts.kernel, "6.1.0");
  EXPECT_EQ(facts.os, "Some Linux 12");
  EXPECT_TRUE(facts.virtual_machine);
  EXPECT_EQ(facts.l1d_bytes, 48 << 10);
  EXPECT_EQ(facts.l2_bytes, 2 << 20);
  EXPECT_EQ(facts.l3_bytes, 36 << 20);
  EXPECT_EQ(facts.memory_bytes, 16 << 10);
  EXPECT_GE(facts.threads, 1);
}

TEST(Host, AnEmptyTreeGivesEmptyFactsNotAnError) {
  TempDir tree;
  const HostFacts facts = read_host_facts(roots_of(tree));
  EXPECT_EQ(facts.cpu_model, "");
  EXPECT_EQ(facts.memory_bytes, 0);
  EXPECT_EQ(available_memory_bytes(roots_of(tree)), 0);
}

TEST(Host, AvailableMemoryIsTheLesserOfMachineAndControlGroup) {
  TempDir tree;
  tree.write("proc/meminfo", "MemAvailable:   1000 kB\n");
  EXPECT_EQ(available_memory_bytes(roots_of(tree)), 1000 << 10);
  tree.write("sys/fs/cgroup/memory.max", "max\n");
  tree.write("sys/fs/cgroup/memory.current", "4096\n");
  EXPECT_EQ(available_memory_bytes(roots_of(tree)), 1000 << 10);
  tree.write("sys/fs/cgroup/memory.max", "10000\n");
  tree.write("sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 1000\n");
  EXPECT_EQ(available_memory_bytes(roots_of(tree)), 10000 - 4096 + 1000);
}

TEST(HostMeters, TemperaturePrefersTheProcessorsHwmonSensor) {
  TempDir tree;
  FakeClock clock;
  tree.write("sys/class/hwmon/hwmon0/name", "nvme\n");
  tree.write("sys/class/hwmon/hwmon0/temp1_input", "30000\n");
  tree.write("sys/class/hwmon/hwmon1/name", "k10temp\n");
  tree.write("sys/class/hwmon/hwmon1/temp1_input", "61250\n");
  tree.write("sys/class/thermal/thermal_zone0/type", "x86_pkg_temp\n");
  tree.write("sys/class/thermal/thermal_zone0/temp", "99000\n");
  const MeterSet set = open_cpu_temperature(roots_of(tree), clock);
  ASSERT_EQ(set.meters.size(), 1u);
  EXPECT_DOUBLE_EQ(set.meters[0]->read().value().value, 61.25);
}

TEST(HostMeters, TemperatureFallsBackToTheThermalZone) {
  TempDir tree;
  FakeClock clock;
  tree.write("sys/class/thermal/thermal_zone0/type", "acpitz\n");
  tree.write("sys/class/thermal/thermal_zone0/temp", "20000\n");
  EXPECT_TRUE(open_cpu_temperature(roots_of(tree), clock).empty());
  tree.write("sys/class/thermal/thermal_zone1/type", "x86_pkg_temp\n");
  tree.write("sys/class/thermal/thermal_zone1/temp", "55000\n");
  const MeterSet set = open_cpu_temperature(roots_of(tree), clock);
  ASSERT_EQ(set.meters.size(), 1u);
  EXPECT_DOUBLE_EQ(set.meters[0]->read().value().value, 55);
}

TEST(HostMeters, ClockIsTheMeanOfCpufreq) {
  TempDir tree;
  FakeClock clock;
  tree.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "2000000\n");
  tree.write("sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", "3000000\n");
  const MeterSet set = open_cpu_clock(roots_of(tree), clock);
  ASSERT_EQ(set.meters.size(), 1u);
  EXPECT_DOUBLE_EQ(set.meters[0]->read().value().value, 2.5e9);
}

TEST(HostMeters, ClockFromCpuinfoOnlyOnRealHardware) {
  TempDir tree;
  FakeClock clock;
  tree.write("proc/cpuinfo", "flags\t: fpu\ncpu MHz\t\t: 1000\ncpu MHz\t\t: 1500\n");
  const MeterSet real = open_cpu_clock(roots_of(tree), clock);
  ASSERT_EQ(real.meters.size(), 1u);
  EXPECT_DOUBLE_EQ(real.meters[0]->read().value().value, 1.25e9);
  tree.write("proc/cpuinfo", "flags\t: fpu hypervisor\ncpu MHz\t\t: 1000\n");
  const MeterSet guest = open_cpu_clock(roots_of(tree), clock);
  EXPECT_TRUE(guest.empty());
  EXPECT_NE(guest.status.reason.find("nominal"), std::string::npos);
}

}  // namespace
}  // namespace dfa::sensors
