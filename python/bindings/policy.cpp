#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "attention/registry.h"
#include "base/env.h"
#include "bench/machine.h"
#include "dfa/error.h"
#include "measure/telemetry.h"
#include "power/rack.h"
#include "privileges/client.h"
#include "python/bindings/core.h"
#include "run/held_levers.h"
#include "run/paced_loop.h"
#include "run/points.h"
#include "run/policy_plan.h"
#include "run/sampling.h"
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

// The levers of that card, which a daemon of its owner lends; its socket's path, or empty for the
// usual one.
std::unique_ptr<run::HeldLevers> ask_for_levers(const std::string& socket,
                                                const std::string& card) {
  constexpr double kLongestLease = 60, kPatience = 5;  // s
  auto client = std::make_unique<privileges::Client>(
      socket.empty() ? env("DFA_PRIVILEGES") : socket, kPatience);
  double lease_s = kLongestLease;
  for (const auto& offer : client->offers()) lease_s = std::min(lease_s, offer.lease_s);
  return std::make_unique<run::HeldLevers>(std::move(client), card, lease_s);
}

// A loop of the user's under a cap, on one card.
class Loop {
 public:
  Loop(const std::string& policy, const std::string& device, double calibrate_s,
       std::optional<double> idle_w, std::optional<std::string> privileges,
       std::optional<std::string> clocks)
      : policy_(power::parse_policy(policy)),
        card_(card_of(device)),
        calibrate_s_(calibrate_s),
        idle_w_(idle_w),
        privileges_(std::move(privileges)),
        clocks_(std::move(clocks)),
        sensors_(measure::open_telemetry(card_, clock_)),
        second_(run::open_second_mean(card_, clock_)) {
    if (clocks_) run::parse_clocks(*clocks_);
    if (sensors_.power.empty()) {
      throw Unsupported("a cap needs a power sensor: " + sensors_.power.status.reason);
    }
    if (policy_.turns_card() && !privileges_) {
      throw InvalidArgument("policy " + power::to_text(policy_) +
                            " turns a lever of the card's owner; accepted with privileges=True, "
                            "where a daemon lends it (dfa privileges)");
    }
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void begin() {
    if (!idle_w_) idle_w_ = run::idle_power(sensors_, clock_, 1);
    const auto facts = measure::describe_gpu(card_);
    put_back_.clear();
    // Kept once the loop is there: what it refuses holds no lease.
    auto levers = privileges_ ? ask_for_levers(*privileges_, card_.pci_id) : nullptr;
    const power::Lent lent = levers ? levers->lent() : power::Lent{};
    run::require_clock(policy_, card_.pci_id, lent);
    loop_ = std::make_unique<run::PacedLoop>(
        run::LoopOptions{.policy = policy_,
                         .idle_w = idle_w_.value_or(0),
                         .limit_w = facts && facts->power_limit_w ? *facts->power_limit_w : 1e5,
                         .calibrate_s = calibrate_s_,
                         .lent = lent,
                         .clocks_hz = clocks_ ? run::clocks_of(*clocks_, card_.pci_id, lent)
                                              : std::vector<double>{}},
        power::Telemetry{.power = sensors_.power.first(),
                         .mean = second_.first(),
                         .energy = sensors_.energy.all(),
                         .temperature = sensors_.temperature.first(),
                         .capped = sensors_.power_capped.first()},
        clock_);
    levers_ = std::move(levers);
  }

  void pace(bool decode, double most_s) {
    if (!loop_) throw InvalidArgument("pace() outside of the with block of its dfa.Governor");
    if (const auto why = levers_ ? levers_->lost() : std::nullopt) {
      put_back_ = *why;
      loop_->lose_levers(*why);
      levers_.reset();
    }
    loop_->pace(decode ? run::Phase::decode : run::Phase::prefill, most_s);
  }

  // From any thread, and before begin().
  void set_policy(const std::string& text) {
    policy_ = power::parse_policy(text);
    if (loop_) loop_->set_policy(policy_);
  }

  void end() {
    if (!loop_) return;
    steps_ = loop_->steps();
    waited_s_ = loop_->waited_s();
    loop_.reset();
    const auto held = std::move(levers_);
    const Verdict end = held ? held->end() : Verdict::yes();
    if (!end && put_back_.empty()) throw Unsupported("the card's own levers: " + end.reason);
  }

  std::string status() const {
    if (!loop_) return "not running";
    const auto last = loop_->last();
    if (last) return power::name_of(last->status);
    return loop_->silent() ? "silent" : "calibrating";
  }
  double duty() const { return loop_ ? loop_->duty() : 1; }
  std::optional<double> power_w() const {
    const auto last = loop_ ? loop_->last() : std::nullopt;
    if (!last) return std::nullopt;
    return last->mean_w ? last->mean_w : last->power_w;
  }
  std::optional<double> clock_hz() const {
    const auto last = loop_ ? loop_->last() : std::nullopt;
    if (!last || !(last->action.clock_hz > 0)) return std::nullopt;
    return last->action.clock_hz;
  }
  std::optional<double> reachable() const {
    const auto last = loop_ ? loop_->last() : std::nullopt;
    return last ? last->reachable : std::nullopt;
  }
  // What the loop would draw without gaps, by what was learned since.
  std::optional<double> full_w() const {
    const auto full = loop_ ? loop_->full_w() : std::nullopt;
    const auto last = loop_ ? loop_->last() : std::nullopt;
    if (!full || !last) return full;
    return *idle_w_ + last->bias * (*full - *idle_w_);
  }
  std::optional<double> limit_w() const {
    const auto facts = measure::describe_gpu(card_);
    return facts ? facts->power_limit_w : std::nullopt;
  }
  long long steps() const { return loop_ ? loop_->steps() : steps_; }
  double waited_s() const { return loop_ ? loop_->waited_s() : waited_s_; }
  std::optional<double> idle_w() const { return idle_w_; }
  const std::string& put_back() const { return put_back_; }

 private:
  sensors::SystemClock clock_;
  power::Policy policy_;
  GpuIdentity card_;
  double calibrate_s_;
  std::optional<double> idle_w_;
  std::optional<std::string> privileges_;
  std::optional<std::string> clocks_;  // at which a step is measured too
  std::string put_back_;               // why the lent levers are gone; empty where they are not
  std::unique_ptr<run::HeldLevers> levers_;  // outlives the loop that turns them
  measure::Telemetry sensors_;
  sensors::MeterSet second_;
  std::unique_ptr<run::PacedLoop> loop_;
  long long steps_ = 0;
  double waited_s_ = 0;
};

// (lease_w, power_w, step_s, least_w, most_w) of a card.
using Report = std::tuple<double, double, double, double, double>;

std::vector<power::CardReport> reports_of(const std::vector<Report>& given) {
  std::vector<power::CardReport> reports;
  for (const auto& [lease_w, power_w, step_s, least_w, most_w] : given) {
    reports.push_back({.lease_w = lease_w,
                       .power_w = power_w,
                       .step_s = step_s,
                       .least_w = least_w,
                       .most_w = most_w});
  }
  return reports;
}

// Watts of the leases of the next round.
std::vector<double> leases_of(double budget_w, const std::vector<Report>& given,
                              const std::vector<double>& promised_w) {
  if (given.empty() || given.size() != promised_w.size()) {
    throw InvalidArgument("reports and promises; accepted: one of each card");
  }
  const std::vector<power::CardReport> reports = reports_of(given);
  const std::vector<double> targets = power::share_power(budget_w, reports, power::kLoopRack);
  std::vector<double> watts;
  for (const power::Lease& lease :
       power::next_leases(0, budget_w, targets, reports, promised_w, power::kLoopRack)) {
    watts.push_back(lease.power_w);
  }
  return watts;
}

void bind_rack(nb::module_& core) {
  core.def(
      "leases", &leases_of, "budget_w"_a, "reports"_a, "promised_w"_a,
      "Watts of each card's next lease, of (lease_w, power_w, step_s, least_w, most_w) of each.");
  core.def(
      "safe_power",
      [](double budget_w, std::size_t cards) {
        return power::safe_power(budget_w, cards, power::kLoopRack);
      },
      "budget_w"_a, "cards"_a, "What a card without a lease may draw.");
}

}  // namespace

Plan plan_by_policy(const Problem& problem, const std::string& backend, const std::string& policy,
                    const std::string& profile) {
  if (problem.batch_invariant) {
    throw InvalidArgument("policy " + policy +
                          " beside batch_invariant: it chooses by lengths; accepted: none");
  }
  return run::policy_plan(problem, profile, backend == "auto" ? bench::default_backend() : backend,
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
      .def(nb::init<const std::string&, const std::string&, double, std::optional<double>,
                    std::optional<std::string>, std::optional<std::string>>(),
           "policy"_a, "device"_a, "calibrate_s"_a, "idle_w"_a.none(), "privileges"_a.none(),
           "clocks"_a.none())
      .def("begin", &Loop::begin, nb::call_guard<nb::gil_scoped_release>())
      .def("pace", &Loop::pace, "decode"_a, "most_s"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("set_policy", &Loop::set_policy, "policy"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("end", &Loop::end, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("status", &Loop::status)
      .def_prop_ro("duty", &Loop::duty)
      .def_prop_ro("power_w", &Loop::power_w)
      .def_prop_ro("reachable", &Loop::reachable)
      .def_prop_ro("clock_hz", &Loop::clock_hz)
      .def_prop_ro("steps", &Loop::steps)
      .def_prop_ro("waited_s", &Loop::waited_s)
      .def_prop_ro("idle_w", &Loop::idle_w)
      .def_prop_ro("put_back", &Loop::put_back)
      .def_prop_ro("full_w", &Loop::full_w)
      .def_prop_ro("limit_w", &Loop::limit_w);
  bind_rack(core);
}

}  // namespace dfa::python
