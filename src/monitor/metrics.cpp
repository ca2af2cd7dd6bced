#include "monitor/metrics.h"

#include <fmt/format.h>

#include <string_view>

#include "monitor/columns.h"

namespace dfa::monitor {
namespace {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out;
}

// Empty, which to Prometheus is none, where it is not known.
std::string numbered(const char* prefix, const std::optional<int>& number) {
  return number ? fmt::format("{}{}", prefix, *number) : std::string();
}

std::string labels_of(const CardNow& card, const std::string& hostname) {
  const sensors::CardFacts& facts = card.facts;
  return fmt::format(
      "gpu=\"{}\",UUID=\"{}\",pci_bus_id=\"{}\",device=\"{}\",modelName=\"{}\",Hostname=\"{}\"",
      numbered("", facts.index), escaped(facts.uuid), escaped(facts.pci_id),
      numbered("nvidia", facts.minor), escaped(facts.name), escaped(hostname));
}

std::string header(const Metric& metric) {
  return fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", metric.name, metric.type, metric.help);
}

// A page for all cards: a header and lines a metric, and nothing where it has no line.
class Page {
 public:
  Page(std::span<const CardNow> cards, const std::string& hostname)
      : cards_(cards), hostname_(hostname) {}

  void add(const Column& column) {
    add(column.metric, [&](const CardNow& card) {
      const auto value = column.value(card);
      return value ? line(column.metric.name, card, "", *value * column.factor) : std::string();
    });
  }

  template <typename LinesOf>
  void add(const Metric& metric, const LinesOf& lines_of) {
    std::string lines;
    for (const CardNow& card : cards_) lines += lines_of(card);
    if (!lines.empty()) text_ += header(metric) + lines;
  }

  std::string line(const char* name, const CardNow& card, const std::string& more,
                   double value) const {
    return fmt::format("{}{{{}{}}} {}\n", name, labels_of(card, hostname_), more, value);
  }
  const std::string& text() const { return text_; }

 private:
  std::span<const CardNow> cards_;
  const std::string& hostname_;
  std::string text_;
};

std::string because(const std::string& why) { return ",reason=\"" + escaped(why) + "\""; }
std::string of_sensor(const CardNow& card, Gauge gauge, const std::string& why) {
  return fmt::format(",sensor=\"{}\"", sensor_of(card, gauge)) + because(why);
}

constexpr Metric kSensorMissing{"dfa_sensor_missing", "gauge",
                                "A sensor that said nothing, and why."};
constexpr Metric kCardMissing{"dfa_card_missing", "gauge",
                              "A GPU that is counted and does not answer, and why."};
constexpr Metric kBreaks{"dfa_counter_breaks", "gauge",
                         "How often a counter broke off, and why the last time: what it counted "
                         "around that is in no sum."};

constexpr Metric kSumPower{"dfa_sum_power_watts", "gauge",
                           "Power draw of so many of the cards together, mean of a second."};
constexpr Metric kSumEnergy{"dfa_sum_energy_joules", "counter",
                            "Energy of so many of the cards together since this exporter began."};
constexpr Metric kBudget{"dfa_budget_watts", "gauge",
                         "Power that the cards together shall draw at most."};
constexpr Metric kAbove{
    "dfa_budget_above_seconds", "counter",
    "Seconds in which the summed power of the cards was above dfa_budget_watts."};
constexpr Metric kUnknown{"dfa_budget_unknown_seconds", "counter",
                          "Seconds in which a card did not tell its power, and the others together "
                          "were not above dfa_budget_watts."};
constexpr Metric kWatched{
    "dfa_budget_watched_seconds", "counter",
    "Seconds of which dfa_budget_above_seconds and dfa_budget_unknown_seconds are parts."};

}  // namespace

std::string to_metrics(std::span<const CardNow> cards, const std::string& hostname) {
  Page page(cards, hostname);
  for (const Column& column : columns()) page.add(column);
  page.add(kSensorMissing, [&](const CardNow& card) {
    std::string lines;
    for (const auto& [gauge, why] : card.missing) {
      lines += page.line(kSensorMissing.name, card, of_sensor(card, gauge, why), 1);
    }
    return lines;
  });
  page.add(kBreaks, [&](const CardNow& card) {
    std::string lines;
    for (const auto& [gauge, grown] : card.growth) {
      if (grown.breaks == 0) continue;
      lines +=
          page.line(kBreaks.name, card, of_sensor(card, gauge, grown.break_reason), grown.breaks);
    }
    return lines;
  });
  page.add(kCardMissing, [&](const CardNow& card) {
    return card.status ? "" : page.line(kCardMissing.name, card, because(card.status.reason), 1);
  });
  return page.text();
}

std::string to_metrics(const Sum& sum, const std::optional<BudgetState>& budget,
                       const std::string& hostname) {
  std::string text;
  const auto line = [&](const Metric& metric, const std::string& labels, double value) {
    text += header(metric) + fmt::format("{}{{Hostname=\"{}\"{}}} {}\n", metric.name,
                                         escaped(hostname), labels, value);
  };
  const auto total = [&](const Metric& metric, const Total& of) {
    if (!of.sum) return;
    line(metric, fmt::format(",cards=\"{}\",of=\"{}\"", of.said, sum.cards), *of.sum);
  };
  total(kSumPower, sum.power);
  total(kSumEnergy, sum.energy);
  if (!budget) return text;
  line(kBudget, "", budget->budget_w);
  line(kAbove, "", budget->above_s);
  line(kUnknown, "", budget->unknown_s);
  line(kWatched, "", budget->watched_s);
  return text;
}

}  // namespace dfa::monitor
