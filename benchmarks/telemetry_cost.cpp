// What sensors, governor and accuracy guard cost the kernels that they watch: the same calls
// without them, with them, and with rows recomputed as well, in turns of a random order. Prints
// JSON: time a call of each, and the ratios of neighbouring turns with their 95 % interval.
//
// telemetry_cost [--problem LINE] [--backend cpu] [--gpu PCI] [--seconds 60] [--turn 0.5]
//
// --gpu: whose sensors are read; default: the backend's. Time is the host's on a GPU, all that lies
// between calls included; on a processor it is the calling thread's processor time, of one thread.
#include <fmt/format.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "attention/registry.h"
#include "base/clock.h"
#include "base/enum_table.h"
#include "base/json.h"
#include "base/random.h"
#include "bench/machine.h"
#include "measure/statistics.h"
#include "power/driver.h"
#include "power/guard.h"
#include "power/pacer.h"
#include "run/governed.h"
#include "run/points.h"
#include "run/sampling.h"
#include "sensors/system_clock.h"

namespace dfa {
namespace {

struct Options {
  std::string problem = "fwd bf16 b4 h16 s4096 d128";
  std::string backend = "auto";
  std::string gpu;
  double seconds = 60;
  double turn_s = 0.5;
};

enum class Mode : int { alone, watched, guarded };
constexpr auto kModes = enum_table<Mode>(
    {{Mode::alone, "alone"}, {Mode::watched, "watched"}, {Mode::guarded, "guarded"}});

double seconds_of(clockid_t id) {
  timespec t{};
  ::clock_gettime(id, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// What one mode showed, a value a turn.
struct Seen {
  std::vector<double> call_s{};
  std::vector<double> others_share{};  // processor time of other threads, of one processor's
  int checks = 0, samples = 0, decisions = 0;
};

// The threads of a governed run whose policy asks for nothing, so that nothing is paced.
class Watching {
 public:
  Watching(const GpuIdentity& gpu, Clock& clock, double call_s)
      : clock_(clock),
        telemetry_(measure::open_telemetry(gpu, clock)),
        governor_(setup_of(call_s), {}, run::meters_of(telemetry_), pacer_),
        driver_(governor_, clock, [this](const power::Decision&) { ++decisions_; }),
        sampling_(gpu, clock, {}) {
    driver_.start();
    sampling_.start(clock.now_s(), {});
  }

  void called(double flops, double call_s) {
    sampling_.add_work(flops);
    driver_.set_activity({.foreign = sampling_.foreign(), .call_s = call_s});
  }

  void stop(Seen& seen) {
    driver_.stop();
    seen.samples += static_cast<int>(sampling_.stop().size());
    seen.decisions += decisions_;
  }

 private:
  static power::Setup setup_of(double call_s) {
    power::Setup setup;
    setup.points.push_back({.label = "default", .time_s = call_s});
    return setup;
  }

  Clock& clock_;
  measure::Telemetry telemetry_;
  power::Pacer pacer_;
  power::Governor governor_;
  int decisions_ = 0;  // of the driver's thread, read once it has ended
  power::Driver driver_;
  run::Sampling sampling_;
};

class Comparison {
 public:
  explicit Comparison(const Options& options)
      : options_(options),
        backend_(options.backend == "auto" ? bench::default_backend() : options.backend),
        gpu_(find_backend(backend_).device().identity()),
        on_processor_(gpu_.pci_id.empty()),
        buffers_(parse_problem(options.problem), backend_, 1),
        plans_(measure::prepare(buffers_.problem(),
                                {.backend = backend_, .threads = on_processor_ ? 1 : 0})) {
    if (!options.gpu.empty()) gpu_ = {.pci_id = options.gpu, .name = options.gpu};
    try {
      rows_ = buffers_.rows_check(run::kGuardRows);
    } catch (const Unsupported& error) {
      unguarded_ = error.what();
    }
  }

  void run() {
    buffers_.run(plans_, 3);
    const double begin = clock_.now_s();
    buffers_.run(plans_, 3);
    call_s_ = (clock_.now_s() - begin) / 3;
    batch_ = run::batch_for(call_s_);
    const int modes = rows_ ? 3 : 2;
    const Random random(1);
    std::uint64_t draw = 0;
    for (const double from = clock_.now_s(); clock_.now_s() - from < options_.seconds;) {
      const int first = static_cast<int>(random.below(draw++, static_cast<std::uint64_t>(modes)));
      const int step = random.below(draw++, 2) == 0 ? 1 : modes - 1;
      for (int i = 0; i < modes; ++i) turn(static_cast<Mode>((first + i * step) % modes));
    }
  }

  Json result() const {
    Json json{
        {"problem", to_line(buffers_.problem())},
        {"backend", backend_},
        {"sensors_of", gpu_.pci_id.empty() ? "host" : gpu_.pci_id},
        {"clock", on_processor_ ? "processor time of the calling thread" : "host"},
        {"turn_s", options_.turn_s},
        {"turns", seen(Mode::alone).call_s.size()},
    };
    if (!unguarded_.empty()) json["not_guarded"] = unguarded_;
    for (const Mode mode : {Mode::alone, Mode::watched, Mode::guarded}) {
      if (!seen(mode).call_s.empty()) json[kModes.name(mode)] = result(mode);
    }
    json["date"] = utc_now();
    return json;
  }

 private:
  const Seen& seen(Mode mode) const { return seen_[static_cast<int>(mode)]; }

  double spent() const {
    return on_processor_ ? seconds_of(CLOCK_THREAD_CPUTIME_ID) : clock_.now_s();
  }

  void turn(Mode mode) {
    Seen& seen = seen_[static_cast<int>(mode)];
    // A card at its power limit is faster after a rest: each turn has that of opening sensors.
    auto watching = std::make_unique<Watching>(gpu_, clock_, call_s_);
    if (mode == Mode::alone) {
      Seen unused;
      watching->stop(unused);
      watching.reset();
    }
    power::Guard guard;
    long long calls = 0;
    const double begin = clock_.now_s(), from = spent(), all = seconds_of(CLOCK_PROCESS_CPUTIME_ID),
                 own = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    for (double now = 0; now < options_.turn_s; now = clock_.now_s() - begin) {
      const double start = clock_.now_s();
      buffers_.run(plans_, batch_);
      calls += batch_;
      if (!watching) continue;
      watching->called(plans_.flops() * batch_, (clock_.now_s() - start) / batch_);
      if (mode != Mode::guarded || !guard.due(now)) continue;
      const double checked = clock_.now_s();
      const double error = buffers_.error(*rows_, static_cast<std::uint64_t>(guard.checks));
      guard.add(now, clock_.now_s() - checked, error);
    }
    seen.call_s.push_back((spent() - from) / static_cast<double>(calls));
    seen.others_share.push_back(
        (seconds_of(CLOCK_PROCESS_CPUTIME_ID) - all - (seconds_of(CLOCK_THREAD_CPUTIME_ID) - own)) /
        (clock_.now_s() - begin));
    seen.checks += guard.checks;
    if (watching) watching->stop(seen);
  }

  Json result(Mode mode) const {
    const Seen& of = seen(mode);
    Json json{{"call_s", measure::summarize(of.call_s).median},
              {"other_threads_pct", 100 * measure::summarize(of.others_share).mean}};
    if (mode == Mode::alone) return json;
    std::vector<double> pct;
    for (std::size_t i = 0; i < of.call_s.size(); ++i) {
      pct.push_back(100 * (of.call_s[i] / seen(Mode::alone).call_s[i] - 1));
    }
    const measure::Summary cost = measure::summarize(pct);
    json.update({{"cost_pct", cost.median},
                 {"cost_pct_half_width", cost.half_width},
                 {"samples", of.samples},
                 {"decisions", of.decisions},
                 {"checks", of.checks}});
    return json;
  }

  Options options_;
  std::string backend_;
  GpuIdentity gpu_;
  bool on_processor_;
  sensors::SystemClock clock_;
  measure::ProblemBuffers buffers_;
  measure::PassPlans plans_;
  std::unique_ptr<RowsCheck> rows_;
  std::string unguarded_;
  double call_s_ = 0;
  int batch_ = 1;
  Seen seen_[3];
};

}  // namespace
}  // namespace dfa

int main(int argc, char** argv) {
  dfa::Options options;
  CLI::App app("What telemetry and guard cost the kernels that they watch");
  app.add_option("--problem", options.problem);
  app.add_option("--backend", options.backend);
  app.add_option("--gpu", options.gpu, "PCI id of the card whose sensors are read");
  app.add_option("--seconds", options.seconds)->check(CLI::PositiveNumber);
  app.add_option("--turn", options.turn_s)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    dfa::Comparison comparison(options);
    comparison.run();
    fmt::print("{}\n", comparison.result().dump(1));
  } catch (const dfa::Error& error) {
    fmt::print(stderr, "telemetry_cost: {}\n", error.what());
    return 3;
  }
}
