#include <fmt/format.h>

#include <array>
#include <set>
#include <sstream>

#include "analysis/report.h"
#include "analysis/worked_example.h"
#include "spec/flops.h"
#include "spec/passes.h"

namespace dfa::analysis {
namespace {

struct Unit {
  double size;
  const char* prefix;
};

// Three or four digits with a decimal prefix: "4.295 G".
std::string scaled(double value) {
  static constexpr std::array<Unit, 7> kUnits{
      {{1e18, "E"}, {1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}, {1, ""}}};
  for (const Unit& unit : kUnits) {
    if (value >= unit.size) return fmt::format("{:.4g} {}", value / unit.size, unit.prefix);
  }
  return fmt::format("{:.4g} ", value);
}

std::string kib(long long bytes) {
  return fmt::format("{:.4g} KiB", static_cast<double>(bytes) / 1024);
}

std::string rate(double value, const char* unit, const std::string& source) {
  if (value > 0) return scaled(value) + unit;
  return source == "measured" ? "not measured" : "not offered";
}

std::string duration(double seconds) {
  if (seconds >= 1) return fmt::format("{:.4g} s", seconds);
  return seconds >= 1e-3 ? fmt::format("{:.4g} ms", seconds * 1e3)
                         : fmt::format("{:.4g} us", seconds * 1e6);
}

// Words of `text` in lines of at most 98 columns after an indent of four.
std::string wrapped(const std::string& text) {
  std::string lines, line = "   ";
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (line.size() + 1 + word.size() > 98) {
      lines += line + "\n";
      line = "   ";
    }
    line += " " + word;
  }
  return lines + line + "\n";
}

std::string operations_text(const Analysis& a) {
  const Problem& p = a.problem;
  const auto row = [](const char* name, double forward, double backward) {
    return fmt::format("  {:<34}{:>14}{:>14}\n", name, scaled(forward) + "FLOP",
                       scaled(backward) + "FLOP");
  };
  std::string text = fmt::format("Operations{:>38}{:>14}\n", "forward", "backward");
  text += row("attention, as rates are quoted", forward_flops(p), backward_flops(p));
  text += row("attention, visible pairs only", total_flops(forward_products(p, a.visible_pairs)),
              total_flops(flash_backward_products(p, a.visible_pairs)));
  text += row("MLP, hidden 4 x d_model", a.mlp.forward, a.mlp.backward);
  text += row("projections q, k, v, o", a.projections.forward, a.projections.backward);
  text += fmt::format("  {} of {} pairs a head are visible\n", a.visible_pairs,
                      static_cast<double>(p.sq) * static_cast<double>(p.sk));
  if (a.attention_equals_mlp) {
    text += fmt::format("  attention costs as much as the MLP at length {:.0f}\n",
                        *a.attention_equals_mlp);
  }
  return text;
}

std::string footprint_text(const Analysis& a) {
  const auto row = [](const std::string& name, double standard, double flash) {
    return fmt::format("  {:<34}{:>14}{:>14}\n", name, scaled(standard) + "B", scaled(flash) + "B");
  };
  std::string text = fmt::format("\nMemory held{:>37}{:>14}\n", "standard", "flash");
  text += row("inputs", a.standard.inputs, a.flash.inputs);
  text += row("outputs", a.standard.outputs, a.flash.outputs);
  text += row("score matrices", a.standard.scores, a.flash.scores);
  text += row("lse and workspace", a.standard.workspace, a.flash.lse + a.flash.workspace);
  text += row("total", a.standard.total(), a.flash.total());
  for (const LengthFootprint& at : a.by_length) {
    text += row(fmt::format("  at length {}", at.length), at.standard.total(), at.flash.total());
  }
  return text;
}

std::string costs_text(const MachineReport& r) {
  std::string text =
      fmt::format("  {:<9}{:<10}{:>14}{:>12}{:>11}  {:<8}{:>16}{:>12}\n", "pass", "algorithm",
                  "executed", "traffic", "FLOP/byte", "bound", "at most", "at least");
  for (const PassCost& cost : r.costs) {
    text += fmt::format("  {:<9}{:<10}{:>14}{:>12}", cost.pass, cost.algorithm,
                        scaled(total_flops(cost.products)) + "FLOP",
                        scaled(cost.traffic.bytes()) + "B");
    if (cost.roof) {
      text +=
          fmt::format("{:>11.4g}  {:<8}{:>16}{:>12}", cost.roof->intensity,
                      cost.roof->memory_bound ? "memory" : "compute",
                      scaled(cost.roof->attainable_flops) + "FLOP/s", duration(cost.roof->time_s));
    }
    text += "\n";
  }
  text += "  (standard: every pass goes to memory; rates and times count what is executed)\n";
  if (!r.no_roof.empty()) text += "  no roofline: " + r.no_roof + "\n";
  return text;
}

std::string regimes_text(const MachineReport& r) {
  std::string text;
  for (std::size_t i = 0; i < r.regimes.size(); ++i) {
    const Regime& regime = r.regimes[i];
    const bool last = i + 1 == r.regimes.size();
    text += fmt::format("  standard attention, length {}{}: {}-bound, S and P {}\n", regime.from,
                        last ? " and up" : fmt::format(" to {}", r.regimes[i + 1].from - 1),
                        regime.memory_bound ? "memory" : "compute",
                        regime.scores_in_cache ? "in the shared cache" : "in memory");
  }
  if (r.longest_standard > 0) {
    text += fmt::format("  longest that fits {}B: standard {}, flash {}\n",
                        scaled(static_cast<double>(r.machine.memory_bytes)), r.longest_standard,
                        r.longest_flash);
  }
  return text;
}

template <typename Config>
std::string tile_text(const char* pass, const Config& config, bool fits, Reread reread) {
  return fmt::format("  {} tile {} x {} ({}{}), what is read again comes from {}\n", pass,
                     config.block_q, config.block_k, kib(config.tile_bytes()),
                     fits ? "" : ", more than the sram",
                     reread == Reread::cache ? "the shared cache" : "memory");
}

std::string tiles_text(const MachineReport& r) {
  std::string text = fmt::format(
      "  tiles that fit {} (block_q x largest block_k, traffic of the "
      "forward without a cache)\n",
      kib(r.sram_bytes));
  for (const Tile& tile : r.tiles) {
    text += fmt::format("    {:>3} x {:<3} {:>12} {:>12}\n", tile.block_q, tile.block_k,
                        kib(tile.tile_bytes), scaled(tile.memory_bytes) + "B");
  }
  if (r.tiles.empty()) text += "    none\n";
  text += fmt::format("    rule Bc = ceil(M/4d), Br = min(Bc, d): {} x {}\n", r.paper.block_q,
                      r.paper.block_k);
  text += fmt::format("  IO complexity, M = {:.0f} elements: N d + N^2 = {}, N^2 d^2 / M = {}\n{}",
                      r.io.sram_elements, scaled(r.io.standard), scaled(r.io.flash),
                      r.io.in_range ? "" : "    (M is outside d..N d, the range of the theorem)\n");
  return text;
}

std::string machine_text(const MachineReport& r, const Problem& p) {
  const Machine& m = r.machine;
  std::string text = fmt::format("\n{} ({})\n  {}\n", m.name, m.source, m.note);
  text += fmt::format("  peak {} {}, memory {}", dfa::name_of(p.dtype),
                      rate(m.peak_flops(p.dtype), "FLOP/s", m.source),
                      rate(m.memory_bytes_per_s, "B/s", m.source));
  if (m.peak_flops(p.dtype) > 0 && m.memory_bytes_per_s > 0) {
    text += fmt::format(", ridge {:.4g} FLOP/byte", m.peak_flops(p.dtype) / m.memory_bytes_per_s);
  }
  text += "\n";
  if (has_forward(p)) {
    text += tile_text("forward", r.forward, r.forward_fits, r.forward_reread);
  }
  if (has_backward(p)) {
    text += tile_text("backward", r.backward, r.backward_fits, r.backward_reread);
  }
  return text + costs_text(r) + regimes_text(r) + tiles_text(r);
}

}  // namespace

std::string to_text(const Analysis& analysis) {
  std::string text = "Problem: " + to_line(analysis.problem) + "\n\n";
  text += operations_text(analysis) + footprint_text(analysis);
  for (const MachineReport& report : analysis.machines) {
    text += machine_text(report, analysis.problem);
  }
  return text;
}

std::string worked_example_text() {
  std::string text = "Worked example: figure 2 of the first FlashAttention paper, on an A100\n  " +
                     to_line(worked_example_problem()) + "\n";
  text += fmt::format("  {:<30}{:>11}{:>11}{:>14}  {}\n", "", "published", "model", "direct count",
                      "agreement");
  for (const PublishedNumber& row : worked_example()) {
    text += fmt::format("  {:<30}{:>11.1f}{:>11.2f}{:>14.2f}  {}\n", row.what + ", " + row.unit,
                        row.published, row.computed, row.direct, name_of(row.agreement));
  }
  text +=
      "  derived: counted from the shapes. assumed: so too, under one order of the loops.\n"
      "  fitted: a constant was chosen to match. bound: least time; theirs was measured.\n";
  std::set<std::string> told;
  for (const PublishedNumber& row : worked_example()) {
    if (told.insert(row.assumptions).second)
      text += "  " + row.what + "\n" + wrapped(row.assumptions);
  }
  return text;
}

}  // namespace dfa::analysis
