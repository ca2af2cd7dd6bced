#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/file.h"
#include "base/json.h"
#include "bench/machine.h"
#include "cli/command.h"
#include "cli/info_section.h"
#include "cuda/cache.h"
#include "dfa/attention.h"
#include "dfa/error.h"
#include "dfa/version.h"
#include "sensors/host.h"
#include "sensors/host_meters.h"
#include "sensors/rapl/rapl.h"
#include "sensors/system_clock.h"
#include "spec/config_names.h"
#include "spec/target.h"

namespace dfa::cli {
namespace {

Section machine_section() {
  const sensors::HostFacts host = sensors::read_host_facts();
  const auto mib = [](std::int64_t bytes) {
    return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
  };
  Section section{"machine", {}};
  section.items.push_back({"host", host.hostname});
  section.items.push_back({"system", host.os + ", kernel " + host.kernel});
  section.items.push_back(
      {"cpu", fmt::format("{}, {} threads for this process{}", host.cpu_model, host.threads,
                          host.virtual_machine ? ", virtual machine" : "")});
  section.items.push_back({"caches", fmt::format("L1d {:.0f} KiB, L2 {}, L3 {}",
                                                 static_cast<double>(host.l1d_bytes) / 1024,
                                                 mib(host.l2_bytes), mib(host.l3_bytes))});
  section.items.push_back({"memory", fmt::format("{}, {} available", mib(host.memory_bytes),
                                                 mib(sensors::available_memory_bytes()))});
  return section;
}

Section build_section() {
  const bench::GitState git = bench::describe_source();
  Section section{"build", {}};
  section.items.push_back({"toolchain", bench::describe_machine(0).toolchain});
  section.items.push_back({"source", git.sha
                                         ? *git.sha + (git.dirty.value_or(false) ? ", changed" : "")
                                         : "not built from a git checkout"});
  return section;
}

Section backend_section() {
  Section section{"devices", {}};
  for (const BackendInfo& info : backends()) {
    section.items.push_back(
        {info.name, info.available ? info.description : info.available.reason, info.available.ok});
  }
  const char* const driver = "/proc/driver/nvidia/version";
  std::error_code error;
  const bool there = std::filesystem::exists(driver, error);
  std::string text = there ? read_file(driver) : std::string(driver) + " is not there";
  section.items.push_back({"NVIDIA driver", text.substr(0, text.find('\n')), there});
  const cuda::CompilerInfo compiler = cuda::compiler_info();
  section.items.push_back({"NVRTC", compiler.text, compiler.works});
  const cuda::PackagedInfo packaged = cuda::packaged_info();
  section.items.push_back({"kernels", packaged.text, packaged.works});
  return section;
}

// An instruction set works when a plan for it can be made.
Section isa_section() {
  Section section{"instruction sets", {}};
  const Problem problem = parse_problem("fwd bf16 b1 h1 s64 d64");
  const std::string used = bench::describe_machine(0).isa;
  for (const Target target : kTargets) {
    Item item{name_of(target), used == name_of(target) ? "works, used for bf16" : "works"};
    try {
      plan(problem,
           {.backend = "cpu",
            .algorithm = Algorithm::flash,
            .config = std::string("target=") + name_of(target) + ",block_q=32,block_k=32"});
    } catch (const Error& error) {
      const std::string why = error.what();
      const std::string prefix = "config: ";
      item = {item.name, why.rfind(prefix, 0) == 0 ? why.substr(prefix.size()) : why, false};
    }
    section.items.push_back(item);
  }
  return section;
}

Item describe(const char* name, const sensors::MeterSet& set) {
  if (set.empty()) return {name, set.status.reason, false};
  std::string text;
  for (const auto& meter : set.meters) {
    const bool reads = meter->read().has_value();
    text += (text.empty() ? "" : ", ") + meter->name() +
            (reads ? "" : " (" + meter->status().reason + ")");
  }
  return {name, text};
}

Section sensor_section() {
  const sensors::SystemClock clock;
  const sensors::HostRoots roots = sensors::host_roots();
  return {"sensors",
          {describe("energy", sensors::open_rapl(roots.sys, clock)),
           describe("temperature", sensors::open_cpu_temperature(roots, clock)),
           describe("clock", sensors::open_cpu_clock(roots, clock))}};
}

Section environment_section() {
  Section section{"environment", {}};
  for (const EnvVariable& variable : env_variables()) {
    section.items.push_back({variable.name, fmt::format("{} (default {}): {}", env(variable.name),
                                                        variable.fallback, variable.help)});
  }
  return section;
}

std::string to_json(const std::vector<Section>& sections) {
  Json json{{"schema", "dfa-info/1"}, {"version", kVersion}};
  for (const Section& section : sections) {
    for (const Item& item : section.items) {
      json[section.name][item.name] = {{"works", item.works}, {"text", item.text}};
    }
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void print(const std::vector<Section>& sections) {
  fmt::print("dfa {}\n", kVersion);
  for (const Section& section : sections) {
    fmt::print("\n{}\n", section.name);
    for (const Item& item : section.items) {
      fmt::print("  {:<15} {}{}\n", item.name, item.works ? "" : "no: ", item.text);
    }
  }
}

// What ought to answer and does not ends the command with 3, after everything else was said.
void demand_answers(const std::vector<Section>& sections) {
  std::string text;
  for (const Section& section : sections) {
    for (const std::string& line : section.unanswered) text += (text.empty() ? "" : "; ") + line;
  }
  if (!text.empty()) throw Unsupported(text);
}

}  // namespace

void add_info(CLI::App& app, int&) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command =
      app.add_subcommand("info", "Devices, instruction sets, sensors: what works, and why not");
  command->add_flag("--json", *json, "print JSON");
  command->footer(
      "Example: dfa info --json\nExit code 3 where a GPU is counted but does not answer.");
  command->callback([json] {
    const std::vector<Section> sections{
        machine_section(), build_section(),      backend_section(),    isa_section(),
        sensor_section(),  gpu_sensor_section(), environment_section()};
    if (*json) {
      fmt::print("{}", to_json(sections));
    } else {
      print(sections);
    }
    std::fflush(stdout);
    demand_answers(sections);
  });
}

}  // namespace dfa::cli
