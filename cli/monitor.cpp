#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/quantity.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/monitor_text.h"
#include "cli/values.h"
#include "dfa/error.h"
#include "monitor/listener.h"
#include "monitor/metrics.h"
#include "monitor/server.h"
#include "sensors/host.h"
#include "sensors/system_clock.h"

namespace dfa::cli {
namespace {

using monitor::CardNow;
using monitor::Look;

struct MonitorArguments {
  std::vector<std::string> cards;
  std::string listen;
  std::string budget;
  bool json = false, csv = false;
  double seconds = 0;  // 0: until an interrupt
  double interval = 1;
};

// On a terminal blocks that redraw themselves, elsewhere lines.
class View {
 public:
  View(const MonitorArguments& arguments, std::string below)
      : json_(arguments.json), csv_(arguments.csv), below_(std::move(below)) {
    if (json_) print(monitor::json_head(sensors::read_host_facts().hostname, utc_now()));
    if (csv_) print(monitor::csv_head());
  }

  void show(const Look& look) {
    if (json_) return print(monitor::to_json_line(look));
    if (csv_) return print(monitor::to_csv_lines(look));
    if (::isatty(STDOUT_FILENO) != 1) return print(to_lines(look));
    const auto [rows, columns] = size();
    std::string text = to_blocks(look) + below_;
    if (rows_of(text, columns) >= rows)
      text = to_table(look) + below_;  // what scrolls is not redrawn
    if (!shown_.empty()) fmt::print("\033[{}A\033[J", rows_of(shown_, columns));
    shown_ = text;
    print(text);
  }

 private:
  static void print(const std::string& text) {
    fmt::print("{}", text);
    std::fflush(stdout);
  }
  struct Size {
    int rows, columns;
  };
  static Size size() {
    winsize told{};
    const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &told) == 0 && told.ws_col > 0;
    return known ? Size{told.ws_row, told.ws_col} : Size{24, 80};
  }

  const bool json_, csv_;
  const std::string below_;
  std::string shown_;
};

// What sensors say, for the view and, on another thread, for whoever scrapes.
class Sensors {
 public:
  Sensors(const std::vector<std::string>& cards, std::optional<double> budget_w, const Clock& clock)
      : clock_(clock), watch_(cards, clock), begin_s_(clock.now_s()) {
    if (budget_w) budget_.emplace(*budget_w);
  }

  Look look() {
    const std::lock_guard lock(mutex_);
    return look_anew();
  }

  // Read anew at each scrape, but not for each of many at once.
  std::string metrics() {
    const std::lock_guard lock(mutex_);
    if (clock_.now_s() - looked_s_ > kFresh) look_anew();
    return monitor::to_metrics(last_.cards, hostname_) +
           monitor::to_metrics(last_.sum, last_.budget, hostname_);
  }

  // Says which of the cards did not answer when they were last asked.
  Verdict all_there() const {
    const std::lock_guard lock(mutex_);
    std::string missing;
    for (const CardNow& card : last_.cards) {
      if (card.status) continue;
      missing += fmt::format("{}{} does not answer: {}", missing.empty() ? "" : "; ", name_of(card),
                             card.status.reason);
    }
    return missing.empty() ? Verdict::yes() : Verdict::no(missing);
  }

 private:
  static constexpr double kFresh = 0.05;  // s, half of what sensors need to say something else

  const Look& look_anew() {
    last_.cards = watch_.look();
    looked_s_ = clock_.now_s();
    last_.time_s = looked_s_ - begin_s_;
    last_.sum = monitor::sum_of(last_.cards);
    if (budget_) last_.budget = budget_->look(last_.time_s, last_.sum);
    return last_;
  }

  const Clock& clock_;
  const std::string hostname_ = sensors::read_host_facts().hostname;
  mutable std::mutex mutex_;
  monitor::Watch watch_;
  std::optional<monitor::Budget> budget_;
  Look last_;
  double begin_s_ = 0, looked_s_ = 0;
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

CLI::Validator watts() {
  return CLI::Validator(
      [](const std::string& text) {
        const auto value = number_with(text, "W");
        if (value && std::isfinite(*value)) return std::string();
        return fmt::format("'{}' is no power above 0: accepted are watts, as 1100W", text);
      },
      "WATTS");
}

std::optional<double> watts_of(const std::string& text) { return number_with(text, "W"); }

void run_monitor(const MonitorArguments& arguments) {
  end_gently();  // before the address is told: whoever reads that may end this
  sensors::SystemClock clock;
  Sensors sensors(arguments.cards, watts_of(arguments.budget), clock);
  std::optional<monitor::Server> server;
  std::string below;
  if (!arguments.listen.empty()) {
    server.emplace(arguments.listen, [&sensors] { return sensors.metrics(); });
    below = fmt::format("http://{}/metrics\n", server->address());
    fmt::print(stderr, "{}", below);
  }
  View view(arguments, below);
  const double begin = clock.now_s();
  const double end = arguments.seconds > 0 ? begin + arguments.seconds : HUGE_VAL;
  // A budget is looked after between what is shown too: the sensors reach back a second.
  const bool often = !arguments.budget.empty();
  for (double next = begin; next < end && !interrupted(); next += arguments.interval) {
    view.show(sensors.look());
    const double until = std::min(next + arguments.interval, end);
    while (often && !interrupted() && until - clock.now_s() > monitor::Budget::kReach) {
      wait_until(clock.now_s() + monitor::Budget::kLookEvery, clock);
      sensors.look();
    }
    wait_until(until, clock);
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
  command
      ->add_option("--budget", a.budget,
                   "what all cards together shall draw at most, e.g. 1100W: says how far their sum "
                   "is from it and for how long it was above")
      ->check(watts());
  CLI::Option* json = command->add_flag("--json", a.json, "an object a look, JSON lines");
  command->add_flag("--csv", a.csv, "a line a card and one of their sum")->excludes(json);
  command->add_option("--seconds", a.seconds, "end after that long (never)")->check(seconds());
  command->add_option("--interval", a.interval, "seconds between looks (1)")
      ->check(seconds(0.1, 3600));
  command->footer(
      "Example: dfa monitor --listen 9400\n"
      "Exit code 3 where a GPU is counted but did not answer when it was last asked.");
  command->callback([arguments] { run_monitor(*arguments); });
}

}  // namespace dfa::cli
