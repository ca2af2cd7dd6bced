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

std::string header(const char* name, const char* type, const char* help) {
  return fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

// A page for all cards: a header and lines a metric, and nothing where it has no line.
class Page {
 public:
  Page(std::span<const CardNow> cards, const std::string& hostname)
      : cards_(cards), hostname_(hostname) {}

  void add(const Column& metric) {
    add(metric, [&](const CardNow& card) {
      const auto value = metric.value(card);
      return value ? line(metric.name, card, "", *value * metric.factor) : std::string();
    });
  }

  template <typename LinesOf>
  void add(const Column& metric, const LinesOf& lines_of) {
    std::string lines;
    for (const CardNow& card : cards_) lines += lines_of(card);
    if (!lines.empty()) text_ += header(metric.name, metric.type, metric.help) + lines;
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

constexpr Column kSensorMissing{
    "", "dfa_sensor_missing", "gauge", "A sensor that said nothing, and why.", 1, nullptr};
constexpr Column kCardMissing{"",      "dfa_card_missing",
                              "gauge", "A GPU that is counted and does not answer, and why.",
                              1,       nullptr};
constexpr Column kBreaks{"",
                         "dfa_counter_breaks",
                         "gauge",
                         "How often a counter broke off, and why the last time: what it counted "
                         "around that is in no sum.",
                         1,
                         nullptr};

}  // namespace

std::string to_metrics(std::span<const CardNow> cards, const std::string& hostname) {
  Page page(cards, hostname);
  for (const Column& metric : columns()) page.add(metric);
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
  const auto line = [&](const char* name, const char* type, const char* help,
                        const std::string& labels, double value) {
    text += header(name, type, help) +
            fmt::format("{}{{Hostname=\"{}\"{}}} {}\n", name, escaped(hostname), labels, value);
  };
  const auto total = [&](const char* name, const char* type, const char* help, const Total& of) {
    if (!of.sum) return;
    line(name, type, help, fmt::format(",cards=\"{}\",of=\"{}\"", of.said, sum.cards), *of.sum);
  };
  total("dfa_sum_power_watts", "gauge",
        "Power draw of so many of the cards together, mean of a second.", sum.power);
  total("dfa_sum_energy_joules", "counter",
        "Energy of so many of the cards together since this exporter began.", sum.energy);
  if (!budget) return text;
  line("dfa_budget_watts", "gauge", "What the cards together shall draw at most.", "",
       budget->budget_w);
  line("dfa_budget_above_seconds", "counter", "Time that their sum was above it.", "",
       budget->above_s);
  line("dfa_budget_unknown_seconds", "counter",
       "Time of which it is not known, as a card did not tell.", "", budget->unknown_s);
  line("dfa_budget_watched_seconds", "counter", "Time of both and of what was within it.", "",
       budget->watched_s);
  return text;
}

}  // namespace dfa::monitor
