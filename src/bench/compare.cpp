#include "bench/compare.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/enum_table.h"
#include "base/json.h"
#include "dfa/error.h"
#include "measure/statistics.h"

namespace dfa::bench {
namespace {

constexpr auto kChanges = enum_table<Change>({{Change::same, "same"},
                                              {Change::faster, "faster"},
                                              {Change::slower, "slower"},
                                              {Change::unclear, "unclear"},
                                              {Change::not_measured, "not measured"}});

using CasesByKey = std::map<std::string, const CaseResult*>;

std::string key_of(const CaseResult& record) {
  return record.suite + " | " + record.problem + " | " + record.algorithm + " | " + record.backend +
         (record.launch == "eager" ? "" : " | " + record.launch);
}

CasesByKey index(const Result& result, const char* name) {
  CasesByKey cases;
  for (const CaseResult& record : result.cases) {
    if (!cases.emplace(key_of(record), &record).second) {
      throw InvalidArgument(std::string(name) + ": result has two cases '" + key_of(record) +
                            "'; accepted: each case once");
    }
  }
  return cases;
}

std::optional<Interval> time_of(const CaseResult& record) {
  if (record.status != CaseStatus::ok || !record.time_ms) return std::nullopt;
  const TimeMs& t = *record.time_ms;
  if (!(t.median > 0)) return std::nullopt;
  return Interval{t.median, t.half_width.value_or(measure::mad_half_width(t.mad, t.n)) / t.median};
}

std::optional<Interval> joules_of(const CaseResult& record) {
  if (record.status != CaseStatus::ok || !record.energy_j || !(*record.energy_j > 0)) {
    return std::nullopt;
  }
  return Interval{*record.energy_j, record.energy_uncertainty_j.value_or(0) / *record.energy_j};
}

void judge_into(const std::optional<Interval>& a, const std::optional<Interval>& b,
                double tolerance, Change& change, std::optional<double>& ratio) {
  if (!a || !b || !(a->value > 0)) return;
  change = judge(*a, *b, tolerance);
  ratio = b->value / a->value;
}

CaseComparison compare_case(const CaseResult& a, const CaseResult& b, double tolerance) {
  CaseComparison result{
      .suite = a.suite, .problem = a.problem, .algorithm = a.algorithm, .backend = a.backend};
  judge_into(time_of(a), time_of(b), tolerance, result.time, result.time_ratio);
  judge_into(joules_of(a), joules_of(b), tolerance, result.joules, result.joules_ratio);
  const auto note = [&](const std::string& words) {
    result.note += (result.note.empty() ? "" : "; ") + words;
  };
  if (a.status != b.status) {
    note(std::string("was ") + name_of(a.status) + ", now " + name_of(b.status));
  } else if (b.status != CaseStatus::ok) {
    note(std::string(name_of(b.status)) + " in both");
  }
  const bool wrong = b.check && !b.check->ok;
  if (wrong) note("its check failed");
  const bool both_ok = a.status == CaseStatus::ok && b.status == CaseStatus::ok;
  const bool untimed = both_ok && time_of(a) && !time_of(b);
  if (untimed) note("no longer timed");
  if (both_ok && !time_of(a)) note(time_of(b) ? "A has no time" : "neither has a time");
  if (both_ok && joules_of(a) && !joules_of(b)) note("joules no longer measured");
  const bool broken = a.status == CaseStatus::ok && b.status != CaseStatus::ok;
  result.worse = broken || wrong || untimed || b.status == CaseStatus::failed ||
                 result.time == Change::slower || result.joules == Change::slower;
  return result;
}

std::string text_of(const std::string& value) { return value.empty() ? "unknown" : value; }
std::string text_of(int value) { return std::to_string(value); }
std::string text_of(const std::optional<double>& value) {
  return value ? Json(*value).dump() : "unknown";
}

std::vector<std::string> differences(const MachineFacts& a, const MachineFacts& b) {
  std::vector<std::string> found;
  const auto hold = [&](const char* what, const auto& before, const auto& after) {
    if (before == after) return;
    found.push_back(std::string(what) + ": " + text_of(before) + ", then " + text_of(after));
  };
  hold("host", a.host, b.host);
  hold("cpu", a.cpu, b.cpu);
  hold("instruction set", a.isa, b.isa);
  hold("threads", a.threads, b.threads);
  measure::GpuFacts no_gpu;
  no_gpu.name = "none";
  const measure::GpuFacts before = a.gpu.value_or(no_gpu);
  const measure::GpuFacts after = b.gpu.value_or(no_gpu);
  hold("gpu", before.name, after.name);
  if (a.gpu && b.gpu) {
    hold("driver", before.driver, after.driver);
    hold("power limit, W", before.power_limit_w, after.power_limit_w);
    hold("multiprocessors", before.sm_count, after.sm_count);
  }
  hold("toolchain", a.toolchain, b.toolchain);
  return found;
}

Json number(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

}  // namespace

const char* name_of(Change change) { return kChanges.name(change); }

Change judge(const Interval& a, const Interval& b, double tolerance) {
  const double ratio = b.value / a.value;
  const double half_width = ratio * std::hypot(a.relative, b.relative);
  const double low = ratio - half_width - 1;
  const double high = ratio + half_width - 1;
  if (low > tolerance) return Change::slower;
  if (high < -tolerance) return Change::faster;
  if (low >= -tolerance && high <= tolerance) return Change::same;
  return Change::unclear;
}

bool Comparison::nothing_timed() const {
  return std::none_of(cases.begin(), cases.end(),
                      [](const CaseComparison& c) { return c.time != Change::not_measured; });
}

bool Comparison::worse() const {
  if (nothing_timed() || !only_a.empty()) return true;
  return std::any_of(cases.begin(), cases.end(), [](const CaseComparison& c) { return c.worse; });
}

Comparison compare(const Result& a, const Result& b, double tolerance) {
  const CasesByKey in_a = index(a, "A");
  const CasesByKey in_b = index(b, "B");
  Comparison comparison;
  comparison.machine = differences(a.machine, b.machine);
  for (const CaseResult& record : a.cases) {
    const auto match = in_b.find(key_of(record));
    if (match == in_b.end()) {
      comparison.only_a.push_back(key_of(record));
    } else {
      comparison.cases.push_back(compare_case(record, *match->second, tolerance));
    }
  }
  for (const CaseResult& record : b.cases) {
    if (!in_a.contains(key_of(record))) comparison.only_b.push_back(key_of(record));
  }
  return comparison;
}

std::string to_json(const Comparison& comparison) {
  Json json = Json::object();
  json["worse"] = comparison.worse();
  json["cases"] = Json::array();
  for (const CaseComparison& c : comparison.cases) {
    json["cases"].push_back({{"suite", c.suite},
                             {"problem", c.problem},
                             {"algorithm", c.algorithm},
                             {"backend", c.backend},
                             {"time", name_of(c.time)},
                             {"time_ratio", number(c.time_ratio)},
                             {"joules", name_of(c.joules)},
                             {"joules_ratio", number(c.joules_ratio)},
                             {"note", c.note},
                             {"worse", c.worse}});
  }
  json["only_a"] = comparison.only_a;
  json["only_b"] = comparison.only_b;
  json["nothing_timed"] = comparison.nothing_timed();
  json["machine"] = comparison.machine;
  return json.dump(1) + "\n";
}

}  // namespace dfa::bench
