#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
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
#include "monitor/listener.h"
#include "monitor/metrics.h"
#include "monitor/server.h"
#include "monitor/watch.h"
#include "sensors/host.h"
#include "sensors/system_clock.h"

namespace dfa::cli {
namespace {

using monitor::CardNow;
using sensors::Gauge;

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

// The share of the limit that is drawn, as a bar.
std::string bar(const CardNow& card) {
  constexpr int kWidth = 24;
  const auto power = value_of(card, Gauge::power_average);
  const double limit = card.settings.power_limit_w.value_or(0);
  if (!power || !(limit > 0)) return "";
  const double share = *power / limit;
  const auto filled = static_cast<int>(std::min(1.0, share) * kWidth + 0.5);
  return fmt::format("[{:#<{}}{:.<{}}] {:.0f} % of {:.0f} W", "", filled, "", kWidth - filled,
                     100 * share, limit);
}

std::string block(const CardNow& card) {
  const auto row = [](const char* name, const std::string& text) {
    return fmt::format("  {:<12}{}\n", name, text);
  };
  if (!card.status) return fmt::format("{}\n{}", name_of(card), row("missing", card.status.reason));
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
         row("held down",
             fmt::format("by {}; by power for {} s, by heat for {} s since start", throttle(card),
                         number(growth_of(card, Gauge::power_capped), 1, "{:.1f}"),
                         number(growth_of(card, Gauge::too_hot), 1, "{:.1f}"))) +
         row("energy", energy(card) + " since start");
}

std::string line(double time_s, const CardNow& card) {
  if (!card.status) {
    return fmt::format("{:7.1f} s {} missing: {}\n", time_s, name_of(card), card.status.reason);
  }
  return fmt::format("{:7.1f} s {} {} W ({} in 1 s) {} C {} MHz {} % held down by {} {}\n", time_s,
                     card.facts.pci_id, number(card, Gauge::power),
                     number(card, Gauge::power_average), number(card, Gauge::temperature),
                     number(card, Gauge::sm_clock, 1e-6), number(card, Gauge::utilization),
                     throttle(card), energy(card));
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

// What sensors say, for the view and, on another thread, for whoever scrapes.
class Sensors {
 public:
  Sensors(const std::vector<std::string>& cards, const Clock& clock)
      : clock_(clock), watch_(cards, clock) {}

  std::vector<CardNow> look() {
    const std::lock_guard lock(mutex_);
    return look_anew();
  }

  // Read anew at each scrape, but not for each of many at once.
  std::string metrics() {
    const std::lock_guard lock(mutex_);
    if (clock_.now_s() - looked_s_ > kFresh) look_anew();
    return monitor::to_metrics(cards_, hostname_);
  }

  // Says which of the cards did not answer when they were last asked.
  Verdict all_there() const {
    const std::lock_guard lock(mutex_);
    std::string missing;
    for (const CardNow& card : cards_) {
      if (card.status) continue;
      missing += fmt::format("{}{} does not answer: {}", missing.empty() ? "" : "; ", name_of(card),
                             card.status.reason);
    }
    return missing.empty() ? Verdict::yes() : Verdict::no(missing);
  }

 private:
  static constexpr double kFresh = 0.05;  // s, half of what sensors need to say something else

  const std::vector<CardNow>& look_anew() {
    cards_ = watch_.look();
    looked_s_ = clock_.now_s();
    return cards_;
  }

  const Clock& clock_;
  const std::string hostname_ = sensors::read_host_facts().hostname;
  mutable std::mutex mutex_;
  monitor::Watch watch_;
  std::vector<CardNow> cards_;
  double looked_s_ = 0;
};

void wait_until(double time_s, Clock& clock) {
  for (double now = clock.now_s(); !interrupted() && now < time_s; now = clock.now_s()) {
    clock.sleep_s(std::min(0.05, std::max(1e-3, time_s - now)));
  }
}

CLI::Validator listen_address() {
  return CLI::Validator([](const std::string& text) { return monitor::check_address(text).reason; },
                        "HOST:PORT");
}

void run_monitor(const MonitorArguments& arguments) {
  end_gently();  // before the address is told: whoever reads that may end this
  sensors::SystemClock clock;
  Sensors sensors(arguments.cards, clock);
  std::optional<monitor::Server> server;
  std::string below;
  if (!arguments.listen.empty()) {
    server.emplace(arguments.listen, [&sensors] { return sensors.metrics(); });
    below = fmt::format("http://{}/metrics\n", server->address());
    fmt::print(stderr, "{}", below);
  }
  View view;
  const double begin = clock.now_s();
  const double end = arguments.seconds > 0 ? begin + arguments.seconds : HUGE_VAL;
  for (double next = begin; next < end && !interrupted(); next += arguments.interval) {
    view.show(clock.now_s() - begin, sensors.look(), below);
    wait_until(std::min(next + arguments.interval, end), clock);
  }
  server.reset();
  if (const Verdict there = sensors.all_there(); !there) throw Unsupported(there.reason);
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
  command
      ->add_option("--listen", a.listen,
                   "serve /metrics at HOST:PORT, e.g. 127.0.0.1:9400; a port alone is on "
                   "loopback, 0 takes a free one")
      ->check(listen_address());
  command->add_option("--seconds", a.seconds, "end after that long (never)")->check(seconds());
  command->add_option("--interval", a.interval, "seconds between looks (1)")
      ->check(seconds(0.1, 3600));
  command->footer(
      "Example: dfa monitor --listen 9400\n"
      "Exit code 3 where a GPU is counted but did not answer when it was last asked.");
  command->callback([arguments] { run_monitor(*arguments); });
}

}  // namespace dfa::cli
