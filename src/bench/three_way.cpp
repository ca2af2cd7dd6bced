#include "bench/three_way.h"

#include "base/file.h"
#include "base/json.h"
#include "dfa/problem.h"

namespace dfa::bench {
namespace {

Json number(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json entry(const CaseResult& record) {
  const Problem p = parse_problem(record.problem);
  Json json = Json::object();
  json["L"] = p.sq;
  json["B"] = p.b;
  json["D"] = p.hq * p.d;
  json["H"] = p.hq;
  json["avg_latency_ms"] = record.time_ms ? Json(record.time_ms->mean) : Json(nullptr);
  json["avg_power_watts"] = number(record.power_avg_w);
  json["max_power_watts"] = number(record.power_max_w);
  json["energy_joules"] = number(record.energy_j);
  json["precision"] = record.precision;
  json["status"] = name_of(record.status);
  return json;
}

}  // namespace

void write_three_way(const std::filesystem::path& folder, const Result& result) {
  constexpr const char* kFiles[][2] = {{"standard", "baseline_results.json"},
                                       {"flash", "flash_results.json"},
                                       {"dynamic", "dynamic_results.json"}};
  for (const auto& [algorithm, file] : kFiles) {
    Json list = Json::array();
    for (const CaseResult& record : result.cases) {
      if (record.suite == "three_way" && record.algorithm == algorithm) {
        list.push_back(entry(record));
      }
    }
    write_file_atomic(folder / file, list.dump(1) + "\n");
  }
}

}  // namespace dfa::bench
