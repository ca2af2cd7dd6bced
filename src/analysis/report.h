#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "analysis/flops.h"
#include "analysis/machine.h"
#include "analysis/memory.h"
#include "analysis/roofline.h"
#include "analysis/tiles.h"
#include "analysis/traffic.h"
#include "base/json.h"

// Everything the other files know about one problem, in one value, and as JSON.
namespace dfa::analysis {

struct AnalyzeOptions {
  std::vector<Machine> machines;
  std::optional<std::int64_t> sram_bytes;  // empty: the machine's
  std::optional<ForwardConfig> forward;    // empty: tiles.h's best
  std::optional<BackwardConfig> backward;
};

// One algorithm's pass on one machine.
struct PassCost {
  std::string pass;               // forward | backward
  std::string algorithm;          // standard | flash
  double counted_flops = 0;       // by the convention that rates are quoted with
  std::vector<Product> products;  // what is executed
  Traffic traffic;
  double uncached_bytes = 0;     // traffic if nothing that is read again stayed in a cache
  std::optional<Roofline> roof;  // empty where the machine's rates are not known
};

struct MachineReport {
  Machine machine;
  std::int64_t sram_bytes = 0;
  ForwardConfig forward;
  BackwardConfig backward;
  bool forward_fits = true;  // tile_bytes() within the sram
  bool backward_fits = true;
  Reread forward_reread = Reread::memory;
  Reread backward_reread = Reread::memory;
  std::vector<PassCost> costs;
  std::string no_roof;  // why costs have no roof; empty when they have
  std::vector<Regime> regimes;
  std::int64_t longest_standard = 0;  // that the machine's memory holds; 0: memory not known
  std::int64_t longest_flash = 0;
  std::vector<Tile> tiles;
  PaperTile paper;
  IoComplexity io;
};

struct LengthFootprint {
  std::int64_t length = 0;
  Footprint standard;
  Footprint flash;
};

struct Analysis {
  Problem problem;
  double visible_pairs = 0;  // of one head
  double counted_pairs = 0;
  LayerFlops mlp;
  LayerFlops projections;
  std::optional<double> attention_equals_mlp;
  Footprint standard;
  Footprint flash;
  std::vector<LengthFootprint> by_length;  // 128, 256, … up to 64k
  std::vector<MachineReport> machines;
};

// Throws InvalidArgument on a bad problem, a configuration of other dims, an sram that holds no
// tile, or a machine whose sram is not known while none was given.
Analysis analyze(const Problem& problem, const AnalyzeOptions& options);

// Schema dfa-analysis/1. What is not known is null.
Json to_json(const Analysis& analysis);

// The same for a terminal, 100 columns.
std::string to_text(const Analysis& analysis);

// The published worked example (worked_example.h).
Json worked_example_json();
std::string worked_example_text();

}  // namespace dfa::analysis
