#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/values.h"
#include "dfa/error.h"
#include "monitor/metrics.h"
#include "monitor/server.h"
#include "monitor/watch.h"
#include "sensors/host.h"
#include "sensors/system_clock.h"

namespace dfa::cli {
namespace {

using monitor::CardNow;
using nvml::Gauge;

struct MonitorArguments {
  std::vector<std::string> cards;
  std::string listen;
  double seconds = 0;  // 0: until an interrupt
  double interval = 1;
};

std::string number(std::optional<double> value, double factor = 1, const char* format = "{:.0f}") {
  return value ? fmt::format(fmt::runtime(format), *value * factor) : "-";
}

std::string number(const CardNow& card, Gauge gauge, double factor = 1) {
  return number(value_of(card, gauge), factor);
}

std::string throttle(const CardNow& card) {
  const auto bits = value_of(card, Gauge::clock_events);
  return bits ? nvml::clock_event_names(static_cast<std::uint64_t>(*bits)) : "-";
}

// The share of the limit that is drawn, as a bar.
std::string bar(const CardNow& card) {
  constexpr int kWidth = 24;
  const auto power = value_of(card, Gauge::power_average);
  if (!power || !card.facts.power_limit_w || *card.facts.power_limit_w <= 0) return "";
  const double share = std::min(1.0, *power / *card.facts.power_limit_w);
  const auto filled = static_cast<int>(share * kWidth + 0.5);
  return fmt::format("[{:#<{}}{:.<{}}] {:.0f} % of {:.0f} W", "", filled, "", kWidth - filled,
                     100 * share, *card.facts.power_limit_w);
}

std::string block(const CardNow& card) {
  const auto row = [](const char* name, const std::string& text) {
    return fmt::format("  {:<12}{}\n", name, text);
  };
  return fmt::format("{}  {}\n", card.facts.name, card.facts.pci_id) +
         row("power", fmt::format("{} W now, {} W in 1 s  {}", number(card, Gauge::power),
                                  number(card, Gauge::power_average), bar(card))) +
         row("temperature", fmt::format("{} °C, memory {} °C", number(card, Gauge::temperature),
                                        number(card, Gauge::memory_temperature))) +
         row("clocks", fmt::format("{} MHz, memory {} MHz", number(card, Gauge::sm_clock, 1e-6),
                                   number(card, Gauge::memory_clock, 1e-6))) +
         row("busy",
             fmt::format("{} % of the time, memory {} %, SMs {} %, tensor cores {} %",
                         number(card, Gauge::utilization), number(card, Gauge::memory_utilization),
                         number(card, Gauge::sm_active), number(card, Gauge::tensor_active))) +
         row("memory", number(card, Gauge::memory_used, 1.0 / (1 << 20)) + " MiB used") +
         row("held down", fmt::format("by {}; by power for {} s, by heat for {} s since start",
                                      throttle(card), number(card.power_capped_s, 1, "{:.1f}"),
                                      number(card.too_hot_s, 1, "{:.1f}"))) +
         row("energy", number(card.energy_j, 1, "{:.1f}") + " J since start");
}

std::string line(double time_s, const CardNow& card) {
  return fmt::format("{:7.1f} s {} {} W ({} in 1 s) {} C {} MHz {} % held down by {} {} J\n",
                     time_s, card.facts.pci_id, number(card, Gauge::power),
                     number(card, Gauge::power_average), number(card, Gauge::temperature),
                     number(card, Gauge::sm_clock, 1e-6), number(card, Gauge::utilization),
                     throttle(card), number(card.energy_j, 1, "{:.1f}"));
}

// On a terminal blocks that redraw themselves, elsewhere a line a card.
class View {
 public:
  void show(double time_s, const std::vector<CardNow>& cards, const std::string& below) {
    std::string text;
    for (const CardNow& card : cards) text += terminal_ ? block(card) : line(time_s, card);
    if (terminal_) {
      text += below;
      if (lines_ > 0) fmt::print("\033[{}A\033[J", lines_);
      lines_ = std::count(text.begin(), text.end(), '\n');
    }
    fmt::print("{}", text);
    std::fflush(stdout);
  }

 private:
  bool terminal_ = ::isatty(STDOUT_FILENO) == 1;
  std::ptrdiff_t lines_ = 0;
};

// The last metrics, written by the one that looks and read by the server.
class Shared {
 public:
  void set(std::string text) {
    const std::lock_guard lock(mutex_);
    text_ = std::move(text);
  }
  std::string get() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

void run_monitor(const MonitorArguments& arguments) {
  sensors::SystemClock clock;
  monitor::Watch watch(arguments.cards, clock);
  const std::string hostname = sensors::read_host_facts().hostname;
  Shared metrics;
  metrics.set(monitor::to_metrics(watch.look(), hostname));
  std::optional<monitor::Server> server;
  std::string below;
  if (!arguments.listen.empty()) {
    server.emplace(arguments.listen, [&metrics] { return metrics.get(); });
    below = fmt::format("http://{}/metrics\n", server->address());
    fmt::print(stderr, "{}", below);
  }
  end_gently();
  View view;
  const double begin = clock.now_s();
  for (double next = begin; !interrupted(); next += arguments.interval) {
    while (!interrupted() && clock.now_s() < next) {
      clock.sleep_s(std::min(0.05, std::max(1e-3, next - clock.now_s())));
    }
    const double now = clock.now_s() - begin;
    if (interrupted() || (arguments.seconds > 0 && now >= arguments.seconds)) break;
    const std::vector<CardNow> cards = watch.look();
    metrics.set(monitor::to_metrics(cards, hostname));
    view.show(now, cards, below);
  }
}

}  // namespace

void add_monitor(CLI::App& app, int&) {
  auto arguments = std::make_shared<MonitorArguments>();
  MonitorArguments& a = *arguments;
  CLI::App* command = app.add_subcommand(
      "monitor", "Watch GPUs: watts, degrees, clocks, joules; for Prometheus too");
  command->add_option("--card", a.cards, "PCI bus id or UUID; may be given several times (all)")
      ->expected(1)
      ->take_all();
  command->add_option("--listen", a.listen,
                      "serve /metrics at HOST:PORT, e.g. 127.0.0.1:9400; a port alone is on "
                      "loopback, 0 takes a free one");
  command->add_option("--seconds", a.seconds, "end after that long (never)")->check(seconds());
  command->add_option("--interval", a.interval, "seconds between looks (1)")
      ->check(seconds(0.1, 3600));
  command->footer("Example: dfa monitor --listen 9400");
  command->callback([arguments] { run_monitor(*arguments); });
}

}  // namespace dfa::cli
