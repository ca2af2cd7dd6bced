#include "evaluate/tools.h"

#include <fmt/format.h>

#include <vector>

#include "base/env.h"
#include "evaluate/command.h"

namespace dfa::evaluate {
namespace {

namespace fs = std::filesystem;

bool works(const std::vector<std::string>& words) {
  Command command{{"sh", "-c", "exec \"$0\" \"$@\" 2>/dev/null"}};
  command.words.insert(command.words.end(), words.begin(), words.end());
  return run_command(command, "/dev/null", [] { return false; }).reason.empty();
}

// The first Python that can import these.
Tool python_with(const std::string& modules) {
  std::vector<std::string> pythons;
  if (const std::string home = env("VIRTUAL_ENV"); !home.empty()) {
    pythons.push_back(home + "/bin/python");
  }
  pythons.push_back(env("DFA_PYTHON"));
  std::string tried;
  for (const std::string& python : pythons) {
    if (works({python, "-c", "import " + modules})) return {python};
    tried += (tried.empty() ? "" : ", ") + python;
  }
  return {.missing = fmt::format("no Python here imports {} (tried {}; DFA_PYTHON names another)",
                                 modules, tried)};
}

Tool seeing_several_cards(const Tool& python) {
  if (!python.there()) return python;
  if (works({python.program, "-c", "import sys, torch; sys.exit(torch.cuda.device_count() < 2)"})) {
    return python;
  }
  return {.missing = "PyTorch sees fewer than two GPUs here"};
}

Tool program(const std::string& name, const std::string& what) {
  if (works({name, "--version"})) return {name};
  return {.missing = fmt::format("{} is not in PATH: {}", name, what)};
}

// Above build/PRESET/cli/dfa.
fs::path checkout_of(const fs::path& dfa) {
  fs::path folder = dfa;
  for (int i = 0; i < 4 && folder.has_relative_path(); ++i) folder = folder.parent_path();
  return folder;
}

}  // namespace

Tools find_tools(const fs::path& source) {
  Tools tools;
  tools.dfa = fs::read_symlink("/proc/self/exe");
  tools.source = source.empty() ? checkout_of(tools.dfa) : fs::absolute(source);
  if (!fs::exists(tools.source / "python/dfa/report/__main__.py")) {
    tools.source_there.missing =
        fmt::format("'{}' is no checkout of dfa; --source names one", tools.source.string());
  }
  tools.report_python = python_with("pandas, matplotlib, seaborn, plotly");
  tools.torch_python = python_with("torch");
  tools.training_python = python_with("torch, dfa._core");
  tools.several_cards = seeing_several_cards(tools.training_python);
  tools.ncu = program("ncu", "it reads the counters of memory traffic");
  return tools;
}

}  // namespace dfa::evaluate
