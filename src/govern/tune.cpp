#include "govern/tune.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "attention/registry.h"
#include "base/clock.h"
#include "dfa/error.h"
#include "profile/frontier.h"
#include "profile/nearest.h"
#include "sensors/host.h"

namespace dfa::govern {
namespace {

struct Job {
  const Problem* problem;
  bench::Prepared plans;
};

std::vector<Job> jobs_of(const std::vector<Problem>& problems, const profile::Store& store,
                         const TuneOptions& options, const profile::Machine& machine,
                         TuneReport& report) {
  std::vector<Job> jobs;
  for (const Problem& problem : problems) {
    for (bench::Prepared& plans : candidate_plans(problem, options.points)) {
      const auto row =
          store.find(machine.card, to_line(problem), plans.any().backend, label_of(plans));
      if (row && profile::stale_reason(*row, machine).empty()) {
        ++report.kept;
      } else {
        jobs.push_back({&problem, std::move(plans)});
      }
    }
  }
  return jobs;
}

// May a configuration of other sizes be one of these?
bool can_prepare(const Problem& problem, const PlanOptions& options) {
  try {
    bench::prepare(problem, options);
    return true;
  } catch (const InvalidArgument&) {
    return false;
  } catch (const Unsupported&) {
    return false;
  }
}

}  // namespace

profile::Machine machine_of(const std::string& backend) {
  const std::string kernels = find_backend(backend).kernels();
  const GpuIdentity gpu = find_backend(backend).gpu_identity();
  if (gpu.pci_id.empty()) {
    const sensors::HostFacts host = sensors::read_host_facts();
    return {host.cpu_model + ", " + std::to_string(host.threads) + " threads", host.kernel,
            kernels};
  }
  const auto facts = bench::describe_gpu(gpu);
  return {gpu.name + " " + gpu.pci_id, facts ? facts->driver : "", kernels};
}

TuneReport tune(const std::vector<Problem>& problems, profile::Store& store,
                const TuneOptions& options, Clock& clock) {
  TuneReport report;
  const std::string& backend = options.points.backend;
  const profile::Machine machine = machine_of(backend);
  const GpuIdentity gpu = find_backend(backend).gpu_identity();
  const bench::Telemetry telemetry = bench::open_telemetry(gpu, clock);
  const std::vector<Job> jobs = jobs_of(problems, store, options, machine, report);
  if (jobs.empty()) return report;
  const double begin = clock.now_s();
  std::unique_ptr<bench::Workload> workload;
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
                          to_line(*jobs[i].problem) + " " + label_of(jobs[i].plans));
    }
    if (loaded != jobs[i].problem) {
      workload.reset();
      workload = std::make_unique<bench::Workload>(*jobs[i].problem, backend, 1);
      loaded = jobs[i].problem;
    }
    if (!idle_w) idle_w = idle_power(telemetry, clock, 1);
    const double row_begin = clock.now_s();
    const auto candidate =
        measure_candidate(*workload, jobs[i].plans, options.points, telemetry, idle_w, clock);
    longest = std::max(longest, clock.now_s() - row_begin);
    if (!candidate) {
      ++report.wrong;
      continue;
    }
    store.put({.machine = machine,
               .problem = to_line(*jobs[i].problem),
               .backend = backend,
               .point = candidate->point,
               .spread = candidate->spread,
               .temp_c = bench::value_of(telemetry.temperature),
               .date = utc_now()});
    ++report.measured;
  }
  return report;
}

KnownPoints known_points(const Problem& problem, const std::string& backend,
                         const std::vector<profile::Row>& rows, bool less_exact) {
  profile::Nearest near = profile::nearest(rows, problem);
  std::erase_if(near.rows, [&](const profile::Row& row) {
    return !less_exact && row.point.dtype != problem.dtype;
  });
  KnownPoints known;
  for (const profile::Row& row : profile::frontier(near.rows)) {
    Problem in_type = problem;
    in_type.dtype = row.point.dtype;
    const PlanOptions options{.backend = backend, .config = row.point.label};
    if (!near.exact && !can_prepare(in_type, options)) continue;
    Candidate candidate;
    candidate.point = row.point;
    candidate.plans = bench::prepare(in_type, options);
    candidate.point.takes_sm_budget = candidate.plans.sms() > 0;
    candidate.batch = batch_for(row.point.time_s);
    known.candidates.push_back(std::move(candidate));
  }
  if (known.candidates.empty()) return known;
  const profile::Row& first = near.rows.front();
  known.told = (near.exact ? "measured" : "in proportion to '" + near.problem + "', measured") +
               " on " + first.machine.card + ", driver " + first.machine.driver + ", " + first.date;
  return known;
}

KnownPoints stored_points(const Problem& problem, const profile::Store& store,
                          const std::string& backend, bool less_exact) {
  const profile::Machine machine = machine_of(backend);
  std::vector<profile::Row> rows = store.rows(machine.card);
  std::erase_if(rows, [&](const profile::Row& row) {
    return row.backend != backend || !profile::stale_reason(row, machine).empty();
  });
  KnownPoints known = known_points(problem, backend, rows, less_exact);
  if (known.candidates.empty()) {
    const std::string line = to_line(problem);
    known.told = "the profile has no row of '" + line +
                 "' on this machine, nor of one of its kind within a " +
                 "factor of four; dfa tune --problem '" + line + "' measures some";
  }
  return known;
}

}  // namespace dfa::govern
