#include "analysis/report.h"

#include "dfa/error.h"
#include "spec/flops.h"
#include "spec/lengths.h"
#include "spec/passes.h"

namespace dfa::analysis {
namespace {

constexpr std::int64_t kShortest = 128, kLongest = 65536;

template <typename Config>
Config matching(const Config& config, const Problem& p) {
  if (config.head_dim != p.d || config.value_dim != p.dv || config.element != p.dtype) {
    throw InvalidArgument("config: head_dim=" + std::to_string(config.head_dim) + " value_dim=" +
                          std::to_string(config.value_dim) + " element=" + name_of(config.element) +
                          " is not for '" + to_line(p) + "'; leave these fields out");
  }
  return config;
}

// `traffic(reread)` gives the bytes with what is read again coming from there.
template <typename TrafficOf>
PassCost cost_of(const char* pass, const char* algorithm, double counted,
                 std::vector<Product> products, Reread reread, TrafficOf&& traffic) {
  return {pass,
          algorithm,
          counted,
          std::move(products),
          traffic(reread),
          traffic(Reread::memory).bytes(),
          {}};
}

void add_forward(MachineReport& report, const Problem& p) {
  const ForwardConfig& c = report.forward;
  const double all = static_cast<double>(p.sq) * static_cast<double>(p.sk);
  const double tiles = tile_pairs(p, c.block_q, c.block_k);
  report.costs.push_back(
      cost_of("forward", "standard", forward_flops(p), forward_products(p, all), Reread::memory,
              [&](Reread) { return standard_forward(p, {.dropout = p.dropout > 0}); }));
  report.costs.push_back(cost_of("forward", "flash", forward_flops(p), forward_products(p, tiles),
                                 report.forward_reread,
                                 [&](Reread from) { return flash_forward(p, c, from); }));
}

void add_backward(MachineReport& report, const Problem& p) {
  const BackwardConfig& c = report.backward;
  const double all = static_cast<double>(p.sq) * static_cast<double>(p.sk);
  const double tiles = tile_pairs(p, c.block_q, c.block_k);
  report.costs.push_back(cost_of(
      "backward", "standard", backward_flops(p), standard_backward_products(p, all), Reread::memory,
      [&](Reread) { return standard_backward(p, {.dropout = p.dropout > 0}); }));
  report.costs.push_back(cost_of("backward", "flash", backward_flops(p),
                                 flash_backward_products(p, tiles), report.backward_reread,
                                 [&](Reread from) { return flash_backward(p, c, from); }));
}

void add_roofs(MachineReport& report, const Problem& p) {
  const double peak = report.machine.peak_flops(p.dtype);
  if (!(peak > 0 && report.machine.memory_bytes_per_s > 0)) {
    const char* what = report.machine.source == "measured" ? "not measured on" : "not offered by";
    report.no_roof = std::string(name_of(p.dtype)) + " rate " + what + " " + report.machine.name;
    return;
  }
  for (PassCost& cost : report.costs) {
    cost.roof = roofline(total_flops(cost.products), cost.traffic.bytes(), peak,
                         report.machine.memory_bytes_per_s);
  }
  report.regimes = standard_regimes(p, report.machine);
}

MachineReport report_on(const Machine& machine, const Problem& p, const AnalyzeOptions& options) {
  MachineReport report;
  report.machine = machine;
  report.sram_bytes = options.sram_bytes.value_or(machine.sram_bytes);
  if (report.sram_bytes < 1) {
    throw InvalidArgument("analysis: sram of " + std::to_string(report.sram_bytes) + " bytes on " +
                          machine.name + "; give 1 or more with --sram");
  }
  report.forward =
      options.forward ? matching(*options.forward, p) : best_forward(p, report.sram_bytes);
  report.forward_fits = report.forward.tile_bytes() <= report.sram_bytes;
  report.forward_reread = reread_of(p, report.forward, machine);
  if (has_backward(p)) {
    report.backward =
        options.backward ? matching(*options.backward, p) : best_backward(p, report.sram_bytes);
    report.backward_fits = report.backward.tile_bytes() <= report.sram_bytes;
    report.backward_reread = reread_of(p, report.backward, machine);
  }
  if (has_forward(p)) add_forward(report, p);
  if (has_backward(p)) add_backward(report, p);
  add_roofs(report, p);
  const auto memory = static_cast<double>(machine.memory_bytes);
  report.longest_standard = longest_length(p, Algorithm::standard, memory);
  report.longest_flash = longest_length(p, Algorithm::flash, memory);
  report.tiles = fitting_tiles(p, report.sram_bytes);
  report.paper = paper_tile(p, report.sram_bytes);
  report.io = io_complexity(p, report.sram_bytes);
  return report;
}

}  // namespace

Analysis analyze(const Problem& p, const AnalyzeOptions& options) {
  validate(p);
  require_dense(p, "analyze");
  if (p.blocks && p.blocks->states.empty()) {
    throw Unsupported(
        "analyze: counts lists of blocks that the line says; accepted: "
        "blocks(random,DENSITY,SEED), blocks(FILE)");
  }
  if (!p.mask_mod.empty()) {
    throw Unsupported(
        "analyze: does not count which pairs a mask_mod shows; leave mask_mod(…) out");
  }
  Analysis analysis;
  analysis.problem = p;
  analysis.visible_pairs = visible_pairs(p);
  analysis.counted_pairs = counted_pairs(p) / static_cast<double>(p.b);
  analysis.mlp = mlp_flops(p);
  analysis.projections = projection_flops(p);
  analysis.attention_equals_mlp = length_where_attention_equals_mlp(p);
  analysis.standard = footprint(p, Algorithm::standard);
  analysis.flash = footprint(p, Algorithm::flash);
  for (std::int64_t length = kShortest; length <= kLongest; length *= 2) {
    const Problem at = with_length(p, length);
    analysis.by_length.push_back(
        {length, footprint(at, Algorithm::standard), footprint(at, Algorithm::flash)});
  }
  for (const Machine& machine : options.machines) {
    analysis.machines.push_back(report_on(machine, p, options));
  }
  return analysis;
}

}  // namespace dfa::analysis
