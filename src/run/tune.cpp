#include "run/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "attention/registry.h"
#include "base/clock.h"
#include "dfa/error.h"
#include "power/controller.h"
#include "profile/frontier.h"
#include "profile/nearest.h"
#include "sensors/host.h"
#include "spec/less_exact.h"

namespace dfa::run {
namespace {

struct Job {
  const Problem* problem;
  profile::Machine machine;
  measure::PassPlans plans;
  std::optional<double> clock_hz;

  std::string text() const {
    return power::text_of({.label = label_of(plans), .clock_hz = clock_hz});
  }
};

std::vector<Job> jobs_of(const std::vector<Problem>& problems, const profile::Store& store,
                         const TuneOptions& options, TuneReport& report) {
  std::vector<Job> jobs;
  for (const Problem& problem : problems) {
    CandidatePlans found = candidate_plans(problem, options.points);
    const profile::Machine machine = machine_of(options.points.backend, problem.pass);
    for (std::string& line : found.refused) report.refused.push_back(std::move(line));
    std::vector<std::optional<double>> clocks{std::nullopt};
    clocks.insert(clocks.end(), options.clocks_hz.begin(), options.clocks_hz.end());
    for (const measure::PassPlans& plans : found.plans) {
      for (const std::optional<double>& clock_hz : clocks) {
        const auto row = store.find(machine.card, to_line(problem), plans.any().backend,
                                    label_of(plans), clock_hz);
        if (row && profile::stale_reason(*row, machine).empty()) {
          ++report.kept;
        } else {
          jobs.push_back({&problem, machine, plans, clock_hz});
        }
      }
    }
  }
  return jobs;
}

// The plans of a row's configuration; none where the row is of other sizes, exact being false, and
// these cannot have it.
std::optional<measure::PassPlans> plans_of(const Problem& problem, const profile::Row& row,
                                           const std::string& backend, bool exact) {
  Problem in_type = problem;
  in_type.dtype = row.point.dtype;
  try {
    return measure::prepare(in_type, {.backend = backend, .config = row.point.label});
  } catch (const InvalidArgument&) {
    if (exact) throw;
  } catch (const Unsupported&) {
    if (exact) throw;
  }
  return std::nullopt;
}

// The rows near a problem that it can have, each with its plans where they had to be made to know.
class Possible {
 public:
  Possible(const Problem& problem, const PointOptions& options, bool exact)
      : problem_(problem), options_(options), exact_(exact) {}

  bool take(const profile::Row& row) {
    const bool own = row.point.dtype == problem_.dtype;
    const bool copies = quantises(problem_.dtype, row.point.dtype);
    // Plans of what was measured in these very sizes are made for those that are chosen alone.
    if (exact_ && own && !row.point.stores_probabilities) return true;
    auto plans = plans_of(problem_, row, options_.backend, exact_ && own);
    if (!plans) {
      if (!own) other_type_ = fmt::format("; {} left out", name_of(row.point.dtype));
      return false;
    }
    if (row.point.stores_probabilities || copies) {
      const std::int64_t needs = memory_of(problem_, *plans);
      const std::int64_t allowed = memory_for_plans(options_.backend, options_.memory_bytes);
      if (needs > allowed) {
        const char* what = copies ? name_of(row.point.dtype) : "stored probabilities";
        memory_ = fmt::format("; {} left out, {} {:.4g} MB of {:.4g}", what,
                              copies ? "it takes" : "they take", static_cast<double>(needs) * 1e-6,
                              static_cast<double>(allowed) * 1e-6);
        return false;
      }
    }
    made_.insert_or_assign(key_of(row), *std::move(plans));
    return true;
  }

  // Of a row that was taken.
  measure::PassPlans plans(const profile::Row& row) const {
    const auto found = made_.find(key_of(row));
    if (found != made_.end()) return found->second;
    return plans_of(problem_, row, options_.backend, true).value();
  }

  std::string left_out() const { return other_type_ + memory_; }

 private:
  using Key = std::pair<std::string, DType>;
  static Key key_of(const profile::Row& row) { return {row.point.label, row.point.dtype}; }

  const Problem& problem_;
  const PointOptions& options_;
  bool exact_;
  std::map<Key, measure::PassPlans> made_{};
  std::string other_type_{}, memory_{};
};

}  // namespace

profile::Machine machine_of(const std::string& backend, Pass pass) {
  const std::string kernels = find_backend(backend).kernels(pass);
  const GpuIdentity gpu = find_backend(backend).device().identity();
  if (gpu.pci_id.empty()) {
    const sensors::HostFacts host = sensors::read_host_facts();
    return {host.cpu_model + ", " + std::to_string(host.threads) + " threads", host.kernel,
            kernels};
  }
  const auto facts = measure::describe_gpu(gpu);
  return {gpu.name + " " + gpu.pci_id, facts ? facts->driver : "", kernels};
}

TuneReport tune(const std::vector<Problem>& problems, profile::Store& store,
                const TuneOptions& options, Clock& clock) {
  TuneReport report;
  const std::string& backend = options.points.backend;
  const GpuIdentity gpu = find_backend(backend).device().identity();
  const measure::Telemetry telemetry = measure::open_telemetry(gpu, clock);
  const std::vector<Job> jobs = jobs_of(problems, store, options, report);
  if (jobs.empty()) return report;
  const double begin = clock.now_s();
  std::unique_ptr<measure::ProblemBuffers> buffers;
  const Problem* loaded = nullptr;
  std::optional<double> idle_w;
  double longest = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const double spent = clock.now_s() - begin;
    const bool late = i > 0 && spent + longest > options.budget_s;
    if (late || (options.interrupted && options.interrupted())) {
      report.left = static_cast<int>(jobs.size() - i);
      break;
    }
    if (options.on_progress) {
      const double rest =
          i > 0 ? spent / static_cast<double>(i) * static_cast<double>(jobs.size() - i) : 0;
      options.on_progress(static_cast<int>(i), static_cast<int>(jobs.size()), rest,
                          to_line(*jobs[i].problem) + " " + jobs[i].text());
    }
    if (loaded != jobs[i].problem) {
      buffers.reset();
      buffers = std::make_unique<measure::ProblemBuffers>(*jobs[i].problem, backend, 1);
      loaded = jobs[i].problem;
    }
    if (!idle_w) idle_w = idle_power(telemetry, clock, 1);
    const double row_begin = clock.now_s();
    std::optional<Candidate> candidate;
    if (options.lock_clock) options.lock_clock(jobs[i].clock_hz.value_or(0));
    try {
      candidate =
          measure_candidate(*buffers, jobs[i].plans, options.points, telemetry, idle_w, clock);
    } catch (const OutOfMemory& error) {  // others took what was free when it was planned
      report.refused.push_back(to_line(*jobs[i].problem) + ": " + error.what());
      continue;
    }
    longest = std::max(longest, clock.now_s() - row_begin);
    if (jobs[i].clock_hz)
      options.lock_clock(*jobs[i].clock_hz);  // else it may have ended meanwhile
    if (!candidate) {
      ++report.wrong;
      continue;
    }
    candidate->point.clock_hz = jobs[i].clock_hz;
    store.put({.machine = jobs[i].machine,
               .problem = to_line(*jobs[i].problem),
               .backend = backend,
               .point = candidate->point,
               .spread = candidate->spread,
               .temp_c = measure::value_of(telemetry.temperature),
               .date = utc_now()});
    ++report.measured;
  }
  return report;
}

KnownPoints known_points(const Problem& problem, const std::vector<profile::Row>& rows,
                         const PointOptions& options) {
  profile::Nearest near = profile::nearest(rows, problem);
  std::erase_if(near.rows, [&](const profile::Row& row) {
    const bool allowed = options.less_exact && row.point.dtype == less_exact(problem);
    return !allowed && row.point.dtype != problem.dtype;
  });
  // Before the frontier: a row that this problem cannot have must not hide one that it can.
  Possible possible(problem, options, near.exact);
  std::erase_if(near.rows, [&](const profile::Row& row) { return !possible.take(row); });
  KnownPoints known;
  for (const profile::Row& row : profile::frontier(near.rows)) {
    Candidate candidate;
    candidate.point = row.point;
    candidate.plans = possible.plans(row);
    candidate.point.memory_bytes = memory_of(problem, candidate.plans);
    candidate.point.takes_sm_budget = candidate.plans.sms() > 0;
    candidate.batch = batch_for(row.point.time_s);
    known.candidates.push_back(std::move(candidate));
  }
  if (known.candidates.empty()) return known;
  const profile::Row& first = near.rows.front();
  known.told = (near.exact ? "measured" : "in proportion to '" + near.problem + "', measured") +
               " on " + first.machine.card + ", driver " + first.machine.driver + ", " +
               first.date + possible.left_out();
  return known;
}

KnownPoints stored_points(const Problem& problem, const profile::Store& store,
                          const PointOptions& options) {
  const std::string& backend = options.backend;
  const profile::Machine machine = machine_of(backend, problem.pass);
  std::vector<profile::Row> rows = store.rows(machine.card);
  std::erase_if(rows, [&](const profile::Row& row) {
    return row.backend != backend || !profile::stale_reason(row, machine).empty();
  });
  KnownPoints known = known_points(problem, rows, options);
  if (known.candidates.empty()) {
    const std::string line = to_line(problem);
    known.told = "the profile has no row of '" + line +
                 "' on this machine, nor of one of its kind within a " +
                 "factor of four; dfa tune --problem '" + line + "' measures some";
  }
  return known;
}

}  // namespace dfa::run
