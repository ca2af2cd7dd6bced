#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "analysis/report.h"
#include "attention/registry.h"
#include "cli/command.h"
#include "cli/unused.h"
#include "cli/values.h"
#include "dfa/error.h"
#include "dfa/problem.h"
#include "sensors/host.h"
#include "spec/config_text.h"

namespace dfa::cli {
namespace {

constexpr double kCeilingSeconds = 1.0;

struct AnalyzeArguments {
  std::string problem;
  std::string machine = "h200";
  std::string config;
  std::optional<std::int64_t> sram_bytes;
  bool json = false;
  bool worked_example = false;
};

analysis::Machine this_machine() {
  const sensors::HostFacts host = sensors::read_host_facts();
  const Ceilings ceilings = find_backend("cpu").diagnostics().measure_ceilings(0, kCeilingSeconds);
  return analysis::measured_host(ceilings, {.model = host.cpu_model,
                                            .memory_bytes = host.memory_bytes,
                                            .shared_cache_bytes = host.l3_bytes,
                                            .core_cache_bytes = host.l2_bytes});
}

// Text that names a type is for that type only; plain "field=value" text is for both.
template <typename Config>
std::optional<Config> config_of(const std::string& type, const std::string& text,
                                const Problem& p) {
  const std::size_t brace = text.find('{');
  const bool named = brace != std::string::npos && brace > 0;
  if (text.empty() || (named && text.substr(0, brace) != type)) return std::nullopt;
  return parse_config(text, Config{.element = p.dtype,
                                   .head_dim = static_cast<int>(p.d),
                                   .value_dim = static_cast<int>(p.dv)});
}

// The tiles asked for; else, on this machine, those that its backend would run.
void set_tiles(analysis::AnalyzeOptions& options, const AnalyzeArguments& arguments,
               const Problem& p) {
  require_known_type(arguments.config);
  options.forward = config_of<ForwardConfig>("ForwardConfig", arguments.config, p);
  options.backward = config_of<BackwardConfig>("BackwardConfig", arguments.config, p);
  if (names_other_pass(arguments.config, p.pass)) {
    throw InvalidArgument("--config '" + arguments.config + "' is of the other pass than '" +
                          to_line(p) + "'");
  }
  if (arguments.machine != "this" || !arguments.config.empty()) return;
  const PlanOptions flash{.backend = "cpu", .algorithm = Algorithm::flash};
  if (!find_backend("cpu").supports(p, flash)) return;
  const Plan chosen = plan(p, flash);
  options.forward = config_of<ForwardConfig>("ForwardConfig", chosen.config, p);
  options.backward = config_of<BackwardConfig>("BackwardConfig", chosen.backward_config, p);
}

void analyze(const AnalyzeArguments& arguments) {
  if (arguments.problem.empty() && !arguments.worked_example) {
    throw InvalidArgument("analyze: give --problem LINE, --worked-example or both");
  }
  Json json;
  std::string text;
  if (!arguments.problem.empty()) {
    const Problem problem = parse_problem(arguments.problem);
    analysis::AnalyzeOptions options;
    options.sram_bytes = arguments.sram_bytes;
    options.machines = arguments.machine == "this" ? std::vector<analysis::Machine>{this_machine()}
                                                   : analysis::machines_named(arguments.machine);
    set_tiles(options, arguments, problem);
    const analysis::Analysis result = analysis::analyze(problem, options);
    json = analysis::to_json(result);
    text = analysis::to_text(result);
  }
  if (arguments.worked_example) {
    json["schema"] = "dfa-analysis/1";
    json["worked_example"] = analysis::worked_example_json();
    text += (text.empty() ? "" : "\n") + analysis::worked_example_text();
  }
  fmt::print("{}", arguments.json ? json.dump(2) + "\n" : text);
}

}  // namespace

void add_analyze(CLI::App& app, int&) {
  auto arguments = std::make_shared<AnalyzeArguments>();
  CLI::App* command = app.add_subcommand(
      "analyze", "Operations, bytes, memory, roofline and IO complexity of a problem");
  command->add_option("--problem", arguments->problem, "the problem line");
  command->add_option("--machine", arguments->machine,
                      "h200 (default), h100, a100, t4, or this: the CPU, measured for a second");
  command
      ->add_option("--sram", arguments->sram_bytes,
                   "bytes of fast memory one tile may use; default: the machine's")
      ->check(whole_number(1, std::uint64_t{1} << 40));
  command->add_option("--config", arguments->config,
                      "tiles, e.g. block_q=128,block_k=64; default: the best that fit");
  command->add_flag("--json", arguments->json, "print JSON, schema dfa-analysis/1");
  command->add_flag("--worked-example", arguments->worked_example,
                    "the first FlashAttention paper's table beside this model");
  command->footer("Example: dfa analyze --problem \"fwd bf16 b1 h16 s1024 d64\" --machine h200");
  command->callback([arguments, command] {
    if (arguments->problem.empty()) {
      refuse_unused(*command, "analyze --worked-example", {"--machine", "--sram", "--config"},
                    "with --problem");
    }
    analyze(*arguments);
  });
}

}  // namespace dfa::cli
