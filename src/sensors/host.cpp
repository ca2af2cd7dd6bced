#include "sensors/host.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>

#include "base/env.h"
#include "sensors/text_value.h"

namespace dfa::sensors {
namespace {

int threads_in_affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

// "1024K", "32M" or "123 kB" in bytes.
std::int64_t parse_bytes(const std::string& text) {
  char* unit = nullptr;
  const long long count = std::strtoll(text.c_str(), &unit, 10);
  while (*unit == ' ') ++unit;
  switch (*unit) {
    case 'K':
    case 'k': return count << 10;
    case 'M': return count << 20;
    case 'G': return count << 30;
    default: return count;
  }
}

void read_caches(const std::filesystem::path& cpu0, HostFacts& facts) {
  for (const auto& index : entries(cpu0 / "cache", "index")) {
    const std::string level = read_text(index / "level");
    const std::string type = read_text(index / "type");
    const std::int64_t bytes = parse_bytes(read_text(index / "size"));
    if (level == "1" && type == "Data") facts.l1d_bytes = bytes;
    if (level == "2") facts.l2_bytes = bytes;
    if (level == "3") facts.l3_bytes = bytes;
  }
}

bool has_word(const std::string& text, const std::string& word) {
  return (" " + text + " ").find(" " + word + " ") != std::string::npos;
}

std::string unquoted(const std::string& text) {
  const bool quoted = text.size() >= 2 && text.front() == '"' && text.back() == '"';
  return quoted ? text.substr(1, text.size() - 2) : text;
}

// What is left of the control group's memory limit, file cache not counted; -1 without a limit.
std::int64_t cgroup_available(const std::filesystem::path& sys) {
  const std::filesystem::path group = sys / "fs" / "cgroup";
  const auto limit = read_number(group / "memory.max").value;
  const auto used = read_number(group / "memory.current").value;
  if (!limit || !used) return -1;
  const std::int64_t cache =
      parse_bytes(find_field(read_text(group / "memory.stat"), "inactive_file", ' '));
  return std::max<std::int64_t>(0, static_cast<std::int64_t>(*limit - *used) + cache);
}

}  // namespace

HostRoots host_roots() { return {.sys = env("DFA_SYSFS_ROOT")}; }

HostFacts read_host_facts(const HostRoots& roots) {
  HostFacts facts;
  const std::string cpuinfo = read_text(roots.proc / "cpuinfo");
  facts.hostname = read_text(roots.proc / "sys" / "kernel" / "hostname");
  facts.kernel = read_text(roots.proc / "sys" / "kernel" / "osrelease");
  facts.cpu_model = find_field(cpuinfo, "model name", ':');
  facts.virtual_machine = has_word(find_field(cpuinfo, "flags", ':'), "hypervisor");
  facts.os = unquoted(find_field(read_text(roots.etc / "os-release"), "PRETTY_NAME", '='));
  facts.threads = threads_in_affinity();
  facts.memory_bytes = parse_bytes(find_field(read_text(roots.proc / "meminfo"), "MemTotal", ':'));
  read_caches(roots.sys / "devices" / "system" / "cpu" / "cpu0", facts);
  return facts;
}

std::int64_t available_memory_bytes(const HostRoots& roots) {
  const std::int64_t machine =
      parse_bytes(find_field(read_text(roots.proc / "meminfo"), "MemAvailable", ':'));
  const std::int64_t group = cgroup_available(roots.sys);
  return group < 0 ? machine : std::min(machine, group);
}

}  // namespace dfa::sensors
