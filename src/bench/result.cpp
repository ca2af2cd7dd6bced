#include "bench/result.h"

#include "base/enum_table.h"
#include "base/file.h"
#include "base/json_text.h"
#include "bench/json_fields.h"

namespace dfa::bench {
namespace {

constexpr auto kResultStatuses =
    enum_table<CaseStatus>({{CaseStatus::ok, "ok"},
                            {CaseStatus::out_of_memory, "out_of_memory"},
                            {CaseStatus::unsupported, "unsupported"},
                            {CaseStatus::failed, "failed"}});

}  // namespace

const char* name_of(CaseStatus status) { return kResultStatuses.name(status); }
static const auto& table_of(CaseStatus) { return kResultStatuses; }

template <typename Visitor, FieldsOf<TimeMs> Fields>
void visit_fields(Visitor& visit, Fields& time) {
  visit("median", time.median);
  visit("min", time.min);
  visit("p95", time.p95);
  visit("mad", time.mad);
  visit("n", time.n);
  visit.extra("mean", time.mean);
  visit.extra("half_width", time.half_width);
}

template <typename Visitor, FieldsOf<Throttle> Fields>
void visit_fields(Visitor& visit, Fields& throttle) {
  visit("power_pct", throttle.power_pct);
  visit("thermal_pct", throttle.thermal_pct);
}

template <typename Visitor, FieldsOf<CheckVerdict> Fields>
void visit_fields(Visitor& visit, Fields& check) {
  visit("ok", check.ok);
  visit("max_error", check.max_error);
  visit("bound", check.bound);
  visit("seed", check.seed);
  visit.extra("tensor", check.tensor);
  visit.extra("sampled", check.sampled);
}

template <typename Visitor, FieldsOf<measure::Search> Fields>
void visit_fields(Visitor& visit, Fields& search) {
  visit("seconds", search.seconds);
  visit("tried", search.tried);
  visit("candidates", search.candidates);
}

template <typename Visitor, FieldsOf<SampleRows> Fields>
void visit_fields(Visitor& visit, Fields& samples) {
  visit("offset_bytes", samples.offset_bytes);
  visit("rows", samples.rows);
  visit("columns", samples.columns);
}

template <typename Visitor, FieldsOf<CaseResult> Fields>
void visit_fields(Visitor& visit, Fields& c) {
  visit("suite", c.suite);
  visit("problem", c.problem);
  visit("algorithm", c.algorithm);
  visit("backend", c.backend);
  visit("config", c.config);
  visit.extra("backward_config", c.backward_config);
  visit("origin", c.origin);
  visit.extra("why", c.why);
  visit.extra("precision", c.precision);
  visit.extra("launch", c.launch);
  visit.extra("sm_budget", c.sm_budget);
  visit.extra("calls_per_run", c.calls_per_run);
  visit("status", c.status);
  visit("reason", c.reason);
  visit("time_ms", c.time_ms);
  visit("tflops", c.tflops);
  visit("energy_j", c.energy_j);
  visit("energy_uncertainty_j", c.energy_uncertainty_j);
  visit("power_avg_w", c.power_avg_w);
  visit("power_max_w", c.power_max_w);
  visit.extra("power_sampled_w", c.power_sampled_w);
  visit("gflop_per_j", c.gflop_per_j);
  visit("temp_c", c.temp_c);
  visit("utilization_pct", c.utilization_pct);
  visit("sm_clock_mhz", c.sm_clock_mhz);
  visit.extra("cpu_clock_mhz", c.cpu_clock_mhz);
  visit.extra("other_load_pct", c.other_load_pct);
  visit.extra("foreign_processes", c.foreign_processes);
  visit("throttle", c.throttle);
  visit("memory_bytes", c.memory_bytes);
  visit.extra("memory_peak_bytes", c.memory_peak_bytes);
  visit.extra("workspace_bytes", c.workspace_bytes);
  visit("check", c.check);
  visit.extra("seed", c.seed);
  visit.extra("flops", c.flops);
  visit.extra("search", c.search);
  visit("samples_file", c.samples_file);
  visit.extra("samples", c.samples);
  visit.extra("not_measured", c.not_measured);
}

template <typename Visitor, FieldsOf<GitState> Fields>
void visit_fields(Visitor& visit, Fields& git) {
  visit("sha", git.sha);
  visit("dirty", git.dirty);
}

template <typename Visitor, FieldsOf<measure::GpuFacts> Fields>
void visit_fields(Visitor& visit, Fields& gpu) {
  visit("name", gpu.name);
  visit("driver", gpu.driver);
  visit("power_limit_w", gpu.power_limit_w);
  visit("sm_count", gpu.sm_count);
}

template <typename Visitor, FieldsOf<MachineFacts> Fields>
void visit_fields(Visitor& visit, Fields& machine) {
  visit("host", machine.host);
  visit("cpu", machine.cpu);
  visit("isa", machine.isa);
  visit("threads", machine.threads);
  visit("gpu", machine.gpu);
  visit("toolchain", machine.toolchain);
  visit.extra("os", machine.os);
  visit.extra("memory_bytes", machine.memory_bytes);
  visit.extra("l2_bytes", machine.l2_bytes);
  visit.extra("l3_bytes", machine.l3_bytes);
  visit.extra("virtual_machine", machine.virtual_machine);
}

template <typename Visitor, FieldsOf<Result> Fields>
void visit_fields(Visitor& visit, Fields& result) {
  visit("schema", result.schema);
  visit("created", result.created);
  visit("argv", result.argv);
  visit("git", result.git);
  visit("machine", result.machine);
  visit.extra("scale", result.scale);
  visit("cases", result.cases);
}

std::string to_json(const Result& result) { return JsonWriter::encode(result).dump(1) + "\n"; }

Result parse_result(const std::string& text) {
  const Json json = parse_json(text);
  if (!json.is_object() || json.value("schema", Json()) != Json(kSchema)) {
    throw InvalidArgument(std::string("schema: expected \"") + kSchema + "\"");
  }
  Result result;
  JsonReader::decode(json, "", result);
  return result;
}

Result read_result(const std::filesystem::path& path) {
  const std::string text = read_file(path, kMostText);
  try {
    return parse_result(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("result '" + path.string() + "': " + error.what());
  }
}

}  // namespace dfa::bench
