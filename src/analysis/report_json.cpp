#include "analysis/report.h"
#include "analysis/worked_example.h"
#include "spec/flops.h"

namespace dfa::analysis {
namespace {

Json known(double value) { return value > 0 ? Json(value) : Json(nullptr); }
Json known(std::int64_t value) { return value > 0 ? Json(value) : Json(nullptr); }

const char* name_of(Reread reread) { return reread == Reread::cache ? "cache" : "memory"; }
const char* bound_of(bool memory_bound) { return memory_bound ? "memory" : "compute"; }

Json json_of(const Footprint& f) {
  return {{"inputs_bytes", f.inputs}, {"outputs_bytes", f.outputs},     {"scores_bytes", f.scores},
          {"lse_bytes", f.lse},       {"workspace_bytes", f.workspace}, {"total_bytes", f.total()}};
}

Json json_of(const LayerFlops& layer) {
  return {{"forward", layer.forward}, {"backward", layer.backward}};
}

Json json_of(const Machine& m) {
  return {{"name", m.name},
          {"source", m.source},
          {"note", m.note},
          {"peak_flops",
           {{"fp32", known(m.fp32_flops)},
            {"tf32", known(m.tf32_flops)},
            {"fp16", known(m.fp16_flops)},
            {"bf16", known(m.bf16_flops)},
            {"fp8", known(m.fp8_flops)}}},
          {"memory_bytes_per_s", known(m.memory_bytes_per_s)},
          {"memory_bytes", known(m.memory_bytes)},
          {"cache_bytes", known(m.cache_bytes)},
          {"sram_bytes", known(m.sram_bytes)},
          {"units", m.units}};
}

Json json_of(const std::optional<Roofline>& roof, double counted_flops) {
  if (!roof) return nullptr;
  return {{"intensity_flops_per_byte", roof->intensity},
          {"ridge_flops_per_byte", roof->ridge},
          {"bound", bound_of(roof->memory_bound)},
          {"attainable_flops", roof->attainable_flops},
          {"time_s", roof->time_s},
          {"counted_flops_per_s", counted_flops / roof->time_s}};
}

Json json_of(const PassCost& cost) {
  Json products = Json::array(), steps = Json::array();
  for (const Product& item : cost.products) {
    products.push_back({{"product", item.name}, {"flops", item.flops}});
  }
  for (const Transfer& step : cost.traffic.steps) {
    steps.push_back(
        {{"what", step.what}, {"read_bytes", step.read_bytes}, {"write_bytes", step.write_bytes}});
  }
  return {{"pass", cost.pass},
          {"algorithm", cost.algorithm},
          {"counted_flops", cost.counted_flops},
          {"executed_flops", total_flops(cost.products)},
          {"products", products},
          {"memory_bytes", cost.traffic.bytes()},
          {"memory_bytes_without_cache", cost.uncached_bytes},
          {"steps", steps},
          {"roofline", json_of(cost.roof, cost.counted_flops)}};
}

template <typename Config>
Json tile_json(const Config& config, bool fits, Reread reread) {
  return {{"block_q", config.block_q},
          {"block_k", config.block_k},
          {"tile_bytes", config.tile_bytes()},
          {"fits_sram", fits},
          {"rereads_from", name_of(reread)}};
}

Json json_of(const MachineReport& report, const Problem& p) {
  Json costs = Json::array(), regimes = Json::array(), tiles = Json::array();
  for (const PassCost& cost : report.costs) costs.push_back(json_of(cost));
  for (const Regime& regime : report.regimes) {
    regimes.push_back({{"from_length", regime.from},
                       {"bound", bound_of(regime.memory_bound)},
                       {"scores_in_cache", regime.scores_in_cache}});
  }
  for (const Tile& tile : report.tiles) {
    tiles.push_back({{"block_q", tile.block_q},
                     {"block_k", tile.block_k},
                     {"tile_bytes", tile.tile_bytes},
                     {"forward_memory_bytes", tile.memory_bytes}});
  }
  Json json{{"machine", json_of(report.machine)}, {"sram_bytes", report.sram_bytes}};
  json["forward_tile"] = tile_json(report.forward, report.forward_fits, report.forward_reread);
  json["backward_tile"] = p.pass == Pass::forward ? Json(nullptr)
                                                  : tile_json(report.backward, report.backward_fits,
                                                              report.backward_reread);
  json["costs"] = costs;
  json["reason"] = report.no_roof.empty() ? Json(nullptr) : Json(report.no_roof);
  json["standard_regimes"] = regimes;
  json["standard_memory_bound_from_length"] = known(memory_bound_from(report.regimes));
  json["longest_length"] = {{"standard", known(report.longest_standard)},
                            {"flash", known(report.longest_flash)}};
  json["fitting_tiles"] = tiles;
  json["paper_tile"] = {{"block_q", report.paper.block_q}, {"block_k", report.paper.block_k}};
  json["io_complexity"] = {{"sram_elements", report.io.sram_elements},
                           {"standard_elements", report.io.standard},
                           {"flash_elements", report.io.flash},
                           {"in_range", report.io.in_range}};
  return json;
}

}  // namespace

Json to_json(const Analysis& analysis) {
  const Problem& p = analysis.problem;
  const double pairs = analysis.visible_pairs;
  Json by_length = Json::array(), machines = Json::array();
  for (const LengthFootprint& at : analysis.by_length) {
    by_length.push_back({{"length", at.length},
                         {"standard_bytes", at.standard.total()},
                         {"flash_bytes", at.flash.total()}});
  }
  for (const MachineReport& report : analysis.machines) machines.push_back(json_of(report, p));
  Json json{{"schema", "dfa-analysis/1"}, {"problem", to_line(p)}};
  json["flops"] = {
      {"pairs_a_head", {{"visible", pairs}, {"counted", analysis.counted_pairs}}},
      {"forward",
       {{"counted", forward_flops(p)}, {"visible", total_flops(forward_products(p, pairs))}}},
      {"backward",
       {{"counted", backward_flops(p)},
        {"visible", total_flops(flash_backward_products(p, pairs))}}},
      {"mlp", json_of(analysis.mlp)},
      {"projections", json_of(analysis.projections)},
      {"attention_equals_mlp_at_length",
       analysis.attention_equals_mlp ? Json(*analysis.attention_equals_mlp) : Json(nullptr)}};
  json["footprint"] = {{"standard", json_of(analysis.standard)},
                       {"flash", json_of(analysis.flash)},
                       {"by_length", by_length}};
  json["machines"] = machines;
  return json;
}

Json worked_example_json() {
  Json rows = Json::array();
  for (const PublishedNumber& row : worked_example()) {
    rows.push_back({{"what", row.what},
                    {"unit", row.unit},
                    {"published", row.published},
                    {"model", row.computed},
                    {"direct_count", row.direct},
                    {"agreement", name_of(row.agreement)},
                    {"rounds_to_published", rounds_to_published(row)},
                    {"assumptions", row.assumptions}});
  }
  return {{"problem", to_line(worked_example_problem())}, {"machine", "a100"}, {"numbers", rows}};
}

}  // namespace dfa::analysis
