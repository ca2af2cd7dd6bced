#include "evaluate/steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "bench/suites.h"
#include "evaluate/several_cards.h"

namespace dfa::evaluate {
namespace {

namespace fs = std::filesystem;

using Words = std::vector<std::string>;

// A suite of `dfa bench`, who runs beside ours, and from which extent on joules belong to its
// question, if they do.
struct Part {
  const char* suite;
  const char* peers;
  std::optional<Extent> joules;
  bool compiled = false;  // the peers are launched in the modes of torch.compile too
};

std::size_t compiled_launches() {
  const auto& names = bench::launch_names();
  return static_cast<std::size_t>(std::count_if(
      names.begin(), names.end(),
      [](const std::string& name) { return bench::is_compiled(bench::parse_launch(name)); }));
}

constexpr const char* kBriefSeconds = "4";  // of timed samples, of each suite

constexpr Part kParts[] = {
    {"three_way", "", Extent::brief},
    {"sequence", "torch", Extent::whole},
    {"batch", "", {}},
    {"causal", "", {}},
    {"heads", "", {}},
    {"embedding", "", {}},
    {"head_dim", "", {}},
    {"memory", "", {}},
    {"forward_backward", "torch-efficient,torch-math", Extent::whole},
    {"heatmap", "", {}},
    {"varlen", "", {}},
    {"launch", "torch-flash,torch-cudnn", {}, true},
};

std::string question_of(const std::string& suite) {
  for (const bench::SuiteInfo& info : bench::suite_list()) {
    if (info.name == suite) return info.question;
  }
  return "";
}

class Maker {
 public:
  Maker(const StepOptions& options, const Tools& tools) : options_(options), tools_(tools) {}

  std::vector<StudyStep> make() {
    for (const Part& part : kParts) steps_.push_back(suite(part));
    steps_.push_back(theory());
    steps_.push_back(counters());
    steps_.push_back(training());
    steps_.push_back(cards());
    steps_.push_back(report());
    return std::move(steps_);
  }

 private:
  bool on_gpu() const { return options_.backend == "cuda"; }
  fs::path in_out(const std::string& file) const { return options_.out / file; }
  std::string dfa() const { return tools_.dfa.string(); }

  StudyStep suite(const Part& part) const {
    const std::string name = part.suite;
    StudyStep step{.name = name,
                   .question = question_of(name),
                   .outputs = {in_out(name + ".json")},
                   .suite = true};
    Words words{dfa(),       "bench",
                "--suite",   name,
                "--backend", options_.backend,
                "--scale",   bench::name_of(options_.scale),
                "--out",     step.outputs[0].string()};
    const bool joules = options_.energy && part.joules && options_.extent >= *part.joules;
    if (!joules) words.push_back("--no-energy");
    if (options_.extent == Extent::quick) words.insert(words.end(), {"--seconds", "1"});
    if (options_.extent == Extent::brief) {
      words.insert(words.end(), {"--seconds", kBriefSeconds});
      if (joules) words.insert(words.end(), {"--energy-seconds", "1"});
    }
    std::size_t peers = 0;
    const std::string wanted = part.peers;
    if (!wanted.empty() && !on_gpu()) {
      step.note = "without PyTorch: its attention is measured on a GPU only";
    } else if (!wanted.empty() && !tools_.torch_python.there()) {
      step.note = "without PyTorch: " + tools_.torch_python.missing;
    } else if (!wanted.empty()) {
      words.insert(words.end(), {"--peers", wanted});
      if (part.compiled) {
        words.insert(words.end(),
                     {"--launch", fmt::format("{}", fmt::join(bench::launch_names(), ","))});
      }
      peers = wanted == "torch" ? 4 : 2;
    }
    Command command{words};
    if (peers > 0) command.environment = {{"DFA_PYTHON", tools_.torch_python.program}};
    step.commands = {command};
    step.estimate_s =
        static_cast<double>(cases(name, peers, part.compiled)) * seconds_a_case(joules);
    return step;
  }

  std::size_t cases(const std::string& suite, std::size_t peers, bool compiled) const {
    std::size_t count = 0;
    for (const auto& group : bench::make_suite(suite, options_.scale)) {
      count += (group.algorithms.size() + peers) * group.launches.size();
      if (compiled) count += peers * compiled_launches();
    }
    return count;
  }

  // Timed samples, and as much again for plans, checks and memory; windows of joules are long.
  double seconds_a_case(bool joules) const {
    // An H200 took 0.7 to 1.2 a case of quick suites.
    if (options_.extent != Extent::whole) return (on_gpu() ? 1.0 : 0.3) + (joules ? 1.3 : 0);
    const bool cpu = options_.scale == bench::Scale::cpu;
    return (cpu ? 0.8 : 4.0) + (joules ? (cpu ? 1.5 : 6.0) : 0);
  }

  StudyStep theory() const {
    StudyStep step{.name = "theory",
                   .question = "operations, bytes, memory and intensity, computed",
                   .estimate_s = 3};
    const std::string machine = on_gpu() ? options_.machine : "h200";
    for (const int s : {512, 1024, 2048, 4096, 8192, 16384}) {
      step.outputs.push_back(in_out(fmt::format("theory/s{}.json", s)));
      step.commands.push_back({{dfa(), "analyze", "--json", "--machine", machine, "--problem",
                                fmt::format("fwd bf16 b{} h16 s{} d64", 16384 / s, s)},
                               step.outputs.back()});
    }
    step.outputs.push_back(in_out("theory/worked_example.json"));
    step.commands.push_back(
        {{dfa(), "analyze", "--json", "--worked-example"}, step.outputs.back()});
    return step;
  }

  StudyStep counters() const {
    StudyStep step{.name = "hbm",
                   .question = "bytes to and from memory by hardware counters, beside theory",
                   .outputs = {in_out("hbm.json")},
                   .estimate_s = 180};
    if (!on_gpu()) {
      step.cannot = "backend " + options_.backend + ": the counters are those of a GPU";
    } else if (!tools_.ncu.there()) {
      step.cannot = tools_.ncu.missing;
    } else if (!tools_.source_there.there()) {
      step.cannot = tools_.source_there.missing;
    }
    step.commands = {{{"python3", (tools_.source / "benchmarks/hbm_bytes").string(), "--out",
                       step.outputs[0].string(), "--dfa", dfa(), "--machine", options_.machine}}};
    return step;
  }

  StudyStep training() const {
    StudyStep step{.name = "training",
                   .question = "a small GPT, trained with standard attention, PyTorch's and ours",
                   .outputs = {in_out("training.json")},
                   .estimate_s = on_gpu() && options_.extent == Extent::whole ? 420.0 : 60.0};
    if (!tools_.training_python.there()) {
      step.cannot = tools_.training_python.missing;
    } else if (!tools_.source_there.there()) {
      step.cannot = tools_.source_there.missing;
    }
    Words words{tools_.training_python.program, (tools_.source / "examples/train_gpt.py").string(),
                "--out", options_.out.string()};
    if (options_.extent == Extent::quick) {
      words.insert(words.end(), {"--steps", "5", "--seeds", "1"});
    }
    if (options_.extent == Extent::brief && on_gpu()) {
      words.insert(words.end(), {"--steps", "100", "--seeds", "2"});
    }
    step.commands = {{words}};
    return step;
  }

  StudyStep cards() const {
    StudyStep step{.name = bench::kSeveralCardsSuite,
                   .question = kSeveralCardsQuestion,
                   .outputs = {in_out("context_parallel.json")},
                   .estimate_s = options_.extent == Extent::whole ? 220.0 : 120.0};
    step.cannot = on_gpu() ? why_no_several_cards(tools_)
                           : "backend " + options_.backend + ": the cards are GPUs";
    Words more;
    if (options_.extent == Extent::quick) more.insert(more.end(), {"--seconds", "0.3"});
    if (options_.extent != Extent::whole) more.insert(more.end(), {"--limit", "90"});
    if (!options_.energy || options_.extent != Extent::whole) {
      more.insert(more.end(), {"--energy-seconds", "0"});
    }
    step.commands = {several_cards(tools_, step.outputs[0], more)};
    return step;
  }

  StudyStep report() const {
    StudyStep step{.name = "report",
                   .question = "one page, every figure as PNG, the three panels as PDF",
                   .outputs = {in_out("report.html"), in_out("three_panel.pdf")},
                   .estimate_s = 15,
                   .always = true};
    if (!tools_.report_python.there()) step.cannot = tools_.report_python.missing;
    if (!tools_.source_there.there()) step.cannot = tools_.source_there.missing;
    step.commands = {{{tools_.report_python.program, "-m", "dfa.report", "--study",
                       in_out("study.json").string(), "--out", options_.out.string()},
                      {},
                      {{"PYTHONPATH", (tools_.source / "python").string()}}}};
    return step;
  }

  const StepOptions& options_;
  const Tools& tools_;
  std::vector<StudyStep> steps_;
};

}  // namespace

std::vector<StudyStep> make_steps(const StepOptions& options, const Tools& tools) {
  return Maker(options, tools).make();
}

}  // namespace dfa::evaluate
