#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "cuda/compiler.h"
#include "cuda/sources.h"
#include "kernels/launch.h"

// The probes: kernels that do one thing of kernels/ptx, tile or softmax each.
namespace dfa::cuda {

struct Probe {
  std::string name;  // what the tests call it
  std::string source;
  std::string entry;
  int least;  // architecture that it claims, and all from there on
};

// The probes with Target::cuda_sm75's instructions in place of those of sm_80.
inline constexpr const char* kSm75Probes = "sm75_probes.cuh";

inline std::vector<Probe> probes() {
  std::vector<Probe> all;
  const auto add = [&](const char* file, int least, const std::string& entry) {
    const bool sm75 = std::string(file) == kSm75Probes;
    all.push_back({(sm75 ? "sm75 " : "") + entry, "primitives/" + std::string(file),
                   "dfa::probe::" + entry, least});
  };
  const auto of = [](const char* type) { return std::string("dfa::DType::") + type; };
  const auto each = [&](int least, const std::string& function) {
    add("arithmetic_probes.cuh", least, "each<dfa::probe::" + function + ">");
  };
  for (const char* f : {"Exp2", "Log2", "Reciprocal", "Infinity", "Bits", "QuadMax", "QuadSum"}) {
    each(75, f);
  }
  each(80, "RoundTf32");
  for (const char* type : {"bf16", "fp16"}) {
    each(80, "Pack<" + of(type) + ">");
    each(75, "Unpack<" + of(type) + ">");
  }
  for (const char* name : {"load_shared", "meet", "read_matrices<false>", "read_matrices<true>",
                           "take_turns", "add_numbers"}) {
    add("memory_probes.cuh", 75, name);
  }
  add("memory_probes.cuh", 80, "copy_chunks<1>");
  for (const char* type : {"bf16", "fp16", "tf32"}) {
    add("memory_probes.cuh", 80, "multiply_fragment<" + of(type) + ">");
  }
  for (const char* type : {"bf16", "fp16", "tf32", "fp32"}) {
    for (const int columns : {16, 32, 64, 96, 192}) {
      const std::string tile = "<" + of(type) + ", " + std::to_string(columns);
      add("tile_probes.cuh", 80, "multiply_tiles" + tile + ">");
      add("tile_probes.cuh", 80, "multiply_and_store" + tile + ", 1>");
      if (columns % 32 == 0) add("tile_probes.cuh", 80, "multiply_and_store" + tile + ", 2>");
      if (type[2] == '1') add("tile_probes.cuh", 80, "multiply_registers_tile" + tile + ">");
    }
  }
  for (const char* name : {"online_softmax<false>", "online_softmax<true>", "lazy_rescale_softmax",
                           "hide<false>", "hide<true>", "work_tiles"}) {
    add("tile_probes.cuh", 75, name);
  }
  const auto on_sm75 = [&](const std::string& entry) { add(kSm75Probes, 75, entry); };
  on_sm75("each<dfa::probe::Pack<dfa::DType::fp16>>");
  on_sm75("copy_chunks<1>");
  on_sm75("multiply_fragment<dfa::DType::fp16>");
  for (const char* tile :
       {"<dfa::DType::fp16, 64", "<dfa::DType::fp16, 96", "<dfa::DType::fp32, 64"}) {
    on_sm75("multiply_tiles" + std::string(tile) + ">");
    on_sm75("multiply_and_store" + std::string(tile) + ", 2>");
  }
  for (const char* name :
       {"phases", "announce", "choose", "trade_registers", "write_matrices", "move_box"}) {
    add("hopper_probes.cuh", 90, name);
  }
  for (const char* type : {"bf16", "fp16"}) {
    for (const int columns : {64, 80, 96, 112, 128, 144, 160, 176, 192, 256}) {
      const std::string tile = "<" + of(type) + ", " + std::to_string(columns) + ">";
      add("hopper_probes.cuh", 90, "multiply_descriptors" + tile);
      add("hopper_probes.cuh", 90, "multiply_values" + tile);
    }
    for (const int columns : {64, 128}) {
      const std::string tile = "<" + of(type) + ", " + std::to_string(columns) + ">";
      add("hopper_probes.cuh", 90, "multiply_held" + tile);
    }
  }
  return all;
}

inline CompileRequest request_of(const Probe& probe, const std::string& arch) {
  return {.source = probe.source,
          .name_expression = probe.entry,
          .arch = arch,
          .options = {std::begin(kCompileOptions), std::end(kCompileOptions)}};
}

// The kernels' sources and the probes'.
inline std::span<const SourceFile> probe_sources() {
  static const std::vector<SourceFile> all = [] {
    std::vector<SourceFile> files(kernel_sources().begin(), kernel_sources().end());
    static std::vector<std::string> held;
    held.reserve(64);
    for (const char* name : {"probe_args.h", "arithmetic_probes.cuh", "hopper_probes.cuh",
                             "memory_probes.cuh", "sm75_probes.cuh", "tile_probes.cuh"}) {
      const std::string& full = held.emplace_back("primitives/" + std::string(name));
      std::ifstream stream(std::string(DFA_SOURCE_DIR) + "/tests/" + full);
      files.push_back({full, held.emplace_back(std::istreambuf_iterator<char>(stream),
                                               std::istreambuf_iterator<char>())});
    }
    return files;
  }();
  return all;
}

}  // namespace dfa::cuda
