#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "attention/registry.h"
#include "bench/machine.h"
#include "bench/telemetry.h"
#include "govern/paced_loop.h"
#include "govern/points.h"
#include "govern/policy_plan.h"
#include "govern/sampling.h"
#include "python/bindings/core.h"
#include "sensors/system_clock.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace dfa::python {
namespace {

// "cuda": the GPU that the backend uses; else a PCI bus id or UUID.
GpuIdentity card_of(const std::string& device) {
  if (device != "cuda") return {.pci_id = device};
  const Backend& cuda = find_backend("cuda");
  if (const Verdict there = cuda.available(); !there) {
    throw Unsupported("device cuda: " + there.reason);
  }
  return cuda.device().identity();
}

// A loop of the user's under a cap, on one card.
class Loop {
 public:
  Loop(const std::string& policy, const std::string& device, double calibrate_s,
       std::optional<double> idle_w)
      : policy_(power::parse_policy(policy)),
        card_(card_of(device)),
        calibrate_s_(calibrate_s),
        idle_w_(idle_w),
        sensors_(bench::open_telemetry(card_, clock_)),
        second_(govern::open_second_mean(card_, clock_)) {
    if (sensors_.power.empty()) {
      throw Unsupported("a cap needs a power sensor: " + sensors_.power.status.reason);
    }
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void begin() {
    if (!idle_w_) idle_w_ = govern::idle_power(sensors_, clock_, 1);
    const auto facts = bench::describe_gpu(card_);
    loop_ = std::make_unique<govern::PacedLoop>(
        govern::LoopOptions{.policy = policy_,
                            .idle_w = idle_w_.value_or(0),
                            .limit_w = facts && facts->power_limit_w ? *facts->power_limit_w : 1e5,
                            .calibrate_s = calibrate_s_},
        power::Telemetry{.power = sensors_.power.first(),
                         .mean = second_.first(),
                         .energy = sensors_.energy.all(),
                         .temperature = sensors_.temperature.first(),
                         .capped = sensors_.power_capped.first()},
        clock_);
  }

  void pace() {
    if (!loop_) throw InvalidArgument("pace() outside of the with block of its dfa.Governor");
    loop_->pace();
  }

  void end() {
    if (!loop_) return;
    steps_ = loop_->steps();
    waited_s_ = loop_->waited_s();
    loop_.reset();
  }

  std::string status() const {
    if (!loop_) return "not running";
    const auto last = loop_->last();
    return last ? power::name_of(last->status) : "calibrating";
  }
  double duty() const { return loop_ ? loop_->duty() : 1; }
  std::optional<double> power_w() const {
    const auto last = loop_ ? loop_->last() : std::nullopt;
    return last ? last->power_w : std::nullopt;
  }
  std::optional<double> reachable() const {
    const auto last = loop_ ? loop_->last() : std::nullopt;
    return last ? last->reachable : std::nullopt;
  }
  long long steps() const { return loop_ ? loop_->steps() : steps_; }
  double waited_s() const { return loop_ ? loop_->waited_s() : waited_s_; }
  std::optional<double> idle_w() const { return idle_w_; }

 private:
  sensors::SystemClock clock_;
  power::Policy policy_;
  GpuIdentity card_;
  double calibrate_s_;
  std::optional<double> idle_w_;
  bench::Telemetry sensors_;
  sensors::MeterSet second_;
  std::unique_ptr<govern::PacedLoop> loop_;
  long long steps_ = 0;
  double waited_s_ = 0;
};

}  // namespace

Plan plan_by_policy(const Problem& problem, const std::string& backend, const std::string& policy,
                    const std::string& profile) {
  return govern::policy_plan(problem, profile,
                             backend == "auto" ? bench::default_backend() : backend,
                             power::parse_policy(policy));
}

void bind_policy(nb::module_& core) {
  core.def(
      "parse_policy",
      [](const std::string& text) {
        const power::Policy policy = power::parse_policy(text);
        return std::tuple(power::to_text(policy), std::string(policy.name()), policy.value);
      },
      "text"_a, "(canonical text, goal, value) of a policy.");
  nb::class_<Loop>(core, "Loop")
      .def(nb::init<const std::string&, const std::string&, double, std::optional<double>>(),
           "policy"_a, "device"_a, "calibrate_s"_a, "idle_w"_a.none())
      .def("begin", &Loop::begin, nb::call_guard<nb::gil_scoped_release>())
      .def("pace", &Loop::pace, nb::call_guard<nb::gil_scoped_release>())
      .def("end", &Loop::end, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("status", &Loop::status)
      .def_prop_ro("duty", &Loop::duty)
      .def_prop_ro("power_w", &Loop::power_w)
      .def_prop_ro("reachable", &Loop::reachable)
      .def_prop_ro("steps", &Loop::steps)
      .def_prop_ro("waited_s", &Loop::waited_s)
      .def_prop_ro("idle_w", &Loop::idle_w);
}

}  // namespace dfa::python
