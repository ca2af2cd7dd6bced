#include "cli/monitor_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace dfa::cli {
namespace {

using monitor::BudgetState;
using monitor::CardNow;
using monitor::Look;
using monitor::Standing;
using monitor::Sum;
using sensors::Gauge;

std::string number(std::optional<double> value, double factor = 1, const char* format = "{:.0f}") {
  return value ? fmt::format(fmt::runtime(format), *value * factor) : "-";
}

std::string number(const CardNow& card, Gauge gauge, double factor = 1) {
  return number(value_of(card, gauge), factor);
}

std::string throttle(const CardNow& card) {
  const auto bits = value_of(card, Gauge::clock_events);
  return bits ? sensors::clock_event_names(static_cast<std::uint64_t>(*bits)) : "-";
}

// Joules since the start, and how often the counter broke off: what was used around that is not in
// them.
std::string energy(const CardNow& card) {
  const auto found = card.growth.find(Gauge::energy);
  const int breaks = found != card.growth.end() ? found->second.breaks : 0;
  return number(growth_of(card, Gauge::energy), 1, "{:.1f}") + " J" +
         (breaks > 0 ? fmt::format(" ({} gap{} not counted: {})", breaks, breaks == 1 ? "" : "s",
                                   found->second.break_reason)
                     : "");
}

// The share of a limit that is drawn, as a bar.
std::string bar(std::optional<double> power_w, double limit_w) {
  constexpr int kWidth = 24;
  if (!power_w || !(limit_w > 0)) return "";
  const double share = *power_w / limit_w;
  const auto filled = static_cast<int>(std::min(1.0, share) * kWidth + 0.5);
  return fmt::format("[{:#<{}}{:.<{}}] {:.0f} % of {:.0f} W", "", filled, "", kWidth - filled,
                     100 * share, limit_w);
}

// Why a card has no counts of its links.
std::string why_no_nvlink(const CardNow& card) {
  const auto found = card.missing.find(Gauge::nvlink_sent);
  return found != card.missing.end() ? found->second : "";
}

std::string nvlink(const CardNow& card) {
  if (const std::string why = why_no_nvlink(card); !why.empty()) return "- (" + why + ")";
  const auto rate = [&](Gauge gauge) { return number(rate_of(card, gauge), 1e-9, "{:.1f}"); };
  const auto sum = [&](Gauge gauge) { return number(growth_of(card, gauge), 1e-9, "{:.1f}"); };
  return fmt::format("{} GB/s out, {} GB/s in; {} and {} GB since start", rate(Gauge::nvlink_sent),
                     rate(Gauge::nvlink_received), sum(Gauge::nvlink_sent),
                     sum(Gauge::nvlink_received));
}

std::string row(const char* name, const std::string& text) {
  return fmt::format("  {:<12}{}\n", name, text);
}

std::string block(const CardNow& card) {
  if (!card.status) return fmt::format("{}\n{}", name_of(card), row("missing", card.status.reason));
  return fmt::format("{}  {}\n", card.facts.name, card.facts.pci_id) +
         row("power", fmt::format("{} W now, {} W in 1 s  {}", number(card, Gauge::power),
                                  number(card, Gauge::power_average),
                                  bar(value_of(card, Gauge::power_average),
                                      card.settings.power_limit_w.value_or(0)))) +
         row("temperature", fmt::format("{} °C, memory {} °C", number(card, Gauge::temperature),
                                        number(card, Gauge::memory_temperature))) +
         row("clocks", fmt::format("{} MHz, memory {} MHz", number(card, Gauge::sm_clock, 1e-6),
                                   number(card, Gauge::memory_clock, 1e-6))) +
         row("busy",
             fmt::format("{} % of the time, memory {} %, SMs {} %, tensor cores {} %",
                         number(card, Gauge::utilization), number(card, Gauge::memory_utilization),
                         number(card, Gauge::sm_active), number(card, Gauge::tensor_active))) +
         row("memory", number(card, Gauge::memory_used, 1.0 / (1 << 20)) + " MiB used") +
         row("held down",
             fmt::format("by {}; by power for {} s, by heat for {} s since start", throttle(card),
                         number(growth_of(card, Gauge::power_capped), 1, "{:.1f}"),
                         number(growth_of(card, Gauge::too_hot), 1, "{:.1f}"))) +
         row("NVLink", nvlink(card)) + row("energy", energy(card) + " since start");
}

std::string nvlink_short(const CardNow& card) {
  if (!why_no_nvlink(card).empty()) return "-";
  return fmt::format("{} GB/s out {} in", number(rate_of(card, Gauge::nvlink_sent), 1e-9, "{:.1f}"),
                     number(rate_of(card, Gauge::nvlink_received), 1e-9, "{:.1f}"));
}

std::string line(double time_s, const CardNow& card) {
  if (!card.status) {
    return fmt::format("{:7.1f} s {} missing: {}\n", time_s, name_of(card), card.status.reason);
  }
  return fmt::format(
      "{:7.1f} s {} {} W ({} in 1 s) {} C {} MHz {} % held down by {} {} NVLink {}\n", time_s,
      card.facts.pci_id, number(card, Gauge::power), number(card, Gauge::power_average),
      number(card, Gauge::temperature), number(card, Gauge::sm_clock, 1e-6),
      number(card, Gauge::utilization), throttle(card), energy(card), nvlink_short(card));
}

bool has_sum(const Look& look) { return look.cards.size() > 1 || look.budget.has_value(); }

// "4 cards", or where some do not tell theirs "3 of 4 cards".
std::string counted(int said, int cards) {
  return (said < cards ? fmt::format("{} of ", said) : "") +
         fmt::format("{} card{}", cards, cards == 1 ? "" : "s");
}

std::string joules(const Sum& sum) {
  std::string text = number(sum.energy.sum, 1, "{:.1f}") + " J";
  if (sum.energy.said != sum.power.said) text += " of " + counted(sum.energy.said, sum.cards);
  if (sum.breaks == 0) return text;
  return text + fmt::format(" ({} gap{} not counted)", sum.breaks, sum.breaks == 1 ? "" : "s");
}

std::string standing(const BudgetState& state) {
  const double watts = std::abs(state.over_w);
  switch (state.standing) {
    case Standing::within: return fmt::format("{:.0f} W below", watts);
    case Standing::above: return fmt::format("{:.0f} W ABOVE", watts);
    case Standing::unknown: break;
  }
  return "not known";
}

std::string times(const BudgetState& state) {
  std::string text = fmt::format("{:.1f} s of {:.1f} s", state.above_s, state.watched_s);
  if (state.most_w > 0) text += fmt::format(", {:.0f} W at most", state.most_w);
  if (state.unknown_s > 0) text += fmt::format("; not known for {:.1f} s", state.unknown_s);
  return text;
}

std::string sum_block(const Look& look) {
  const Sum& sum = look.sum;
  std::string text = counted(sum.power.said, sum.cards) + " together\n" +
                     row("power", number(sum.power.sum) + " W in 1 s") +
                     row("energy", joules(sum) + " since start");
  if (!sum.power.missing.empty()) text += row("not in it", sum.power.missing);
  if (!look.budget) return text;
  const BudgetState& state = *look.budget;
  return text +
         row("budget", fmt::format("{}  {}", bar(sum.power.sum, state.budget_w), standing(state))) +
         row("above it", "for " + times(state));
}

std::string sum_line(const Look& look) {
  const Sum& sum = look.sum;
  std::string text =
      fmt::format("{:7.1f} s {} together {} W in 1 s {}", look.time_s,
                  counted(sum.power.said, sum.cards), number(sum.power.sum), joules(sum));
  if (look.budget) {
    text += fmt::format(" budget {:.0f} W: {}, above for {}", look.budget->budget_w,
                        standing(*look.budget), times(*look.budget));
  }
  return text + "\n";
}

}  // namespace

std::string to_blocks(const Look& look) {
  std::string text;
  for (const CardNow& card : look.cards) text += block(card);
  return has_sum(look) ? text + sum_block(look) : text;
}

std::string to_table(const Look& look) {
  std::string text =
      fmt::format("{:>3} {:<13}{:>6}{:>9}{:>7}{:>5}{:>6}{:>6}{:>13}{:>9}\n", "GPU", "PCI bus id",
                  "W now", "W in 1 s", "limit", "C", "MHz", "busy", "GB/s out/in", "J");
  for (const CardNow& card : look.cards) {
    const std::string index = card.facts.index ? fmt::format("{}", *card.facts.index) : "-";
    text += fmt::format("{:>3} {:<13}", index, card.facts.pci_id);
    if (!card.status) {
      text += fmt::format(" missing: {}\n", card.status.reason);
      continue;
    }
    text += fmt::format("{:>6}{:>9}{:>7}{:>5}{:>6}{:>6}{:>13}{:>9}\n", number(card, Gauge::power),
                        number(card, Gauge::power_average), number(card.settings.power_limit_w),
                        number(card, Gauge::temperature), number(card, Gauge::sm_clock, 1e-6),
                        number(card, Gauge::utilization),
                        number(rate_of(card, Gauge::nvlink_sent), 1e-9, "{:.1f}") + "/" +
                            number(rate_of(card, Gauge::nvlink_received), 1e-9, "{:.1f}"),
                        number(growth_of(card, Gauge::energy)));
  }
  return has_sum(look) ? text + sum_block(look) : text;
}

std::string to_lines(const Look& look) {
  std::string text;
  for (const CardNow& card : look.cards) text += line(look.time_s, card);
  return has_sum(look) ? text + sum_line(look) : text;
}

int rows_of(const std::string& text, int columns) {
  int rows = 0, column = 0;
  for (const char c : text) {
    if (c == '\n') {
      rows += 1 + std::max(0, column - 1) / columns;
      column = 0;
    } else {
      column += (c & 0xC0) != 0x80;  // of a character in UTF-8, its first byte
    }
  }
  return rows;
}

}  // namespace dfa::cli
