#include "cuda/cache.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "cli/command.h"
#include "dfa/error.h"
#include "spec/algorithm_name.h"

namespace dfa::cli {
namespace {

struct CacheArguments {
  std::string action;
  std::vector<std::string> problems;
  std::string arch;
  std::string algorithm = "auto";
  bool json = false;
};

std::string dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json to_json(const cuda::CacheEntry& entry) {
  return {{"kernel", entry.name_expression}, {"arch", entry.arch},
          {"compiler", entry.compiler},      {"bytes", entry.bytes},
          {"digest", entry.digest},          {"intact", entry.intact.ok},
          {"reason", entry.intact.reason}};
}

void list(const CacheArguments& arguments) {
  const std::filesystem::path folder = cuda::cache_folder();
  const std::vector<cuda::CacheEntry> entries = cuda::list_cache(folder);
  if (arguments.json) {
    Json json{{"schema", "dfa-cache/1"}, {"folder", folder.string()}, {"kernels", Json::array()}};
    for (const cuda::CacheEntry& entry : entries) json["kernels"].push_back(to_json(entry));
    fmt::print("{}", dump(json));
    return;
  }
  std::uint64_t bytes = 0;
  for (const cuda::CacheEntry& entry : entries) {
    bytes += entry.bytes;
    fmt::print("{:>9}  {:<8} {:<12} {}\n", entry.bytes, entry.arch, entry.compiler,
               entry.intact ? entry.name_expression
                            : entry.digest.substr(0, 12) + "… not usable: " + entry.intact.reason);
  }
  fmt::print("{} kernels, {} bytes in '{}'\n", entries.size(), bytes, folder.string());
}

void warm(const CacheArguments& arguments) {
  if (arguments.problems.empty()) {
    throw InvalidArgument("cache warm: --problem is required; a problem line, as often as wanted");
  }
  const Algorithm algorithm = parse_algorithm(arguments.algorithm);
  std::string not_kept;
  Json json{{"schema", "dfa-cache/1"},
            {"folder", cuda::cache_folder().string()},
            {"kernels", Json::array()}};
  for (const std::string& line : arguments.problems) {
    for (const cuda::WarmKernel& kernel :
         cuda::warm_cache(parse_problem(line), arguments.arch, algorithm)) {
      json["kernels"].push_back({{"name", kernel.name},
                                 {"kernel", kernel.name_expression},
                                 {"origin", kernel.origin},
                                 {"registers", kernel.registers},
                                 {"time_s", kernel.time_s},
                                 {"note", kernel.note},
                                 {"warning", kernel.warning}});
      if (!kernel.kept && not_kept.empty()) not_kept = kernel.note;
      if (arguments.json) continue;
      fmt::print("{:<9} {:6.2f} s {:>4} registers  {}{}\n", kernel.origin, kernel.time_s,
                 kernel.registers, kernel.name_expression,
                 kernel.note.empty() ? "" : " (" + kernel.note + ")");
      if (!kernel.warning.empty()) fmt::print("warning: {}\n", kernel.warning);
    }
  }
  if (arguments.json) fmt::print("{}", dump(json));
  if (!not_kept.empty()) throw IoError("cache warm: " + not_kept);  // what it is for was not done
}

void clear(const CacheArguments& arguments) {
  const std::filesystem::path folder = cuda::cache_folder();
  const int removed = cuda::clear_cache(folder);
  if (arguments.json) {
    fmt::print(
        "{}", dump({{"schema", "dfa-cache/1"}, {"folder", folder.string()}, {"removed", removed}}));
  } else {
    fmt::print("{} kernels removed from '{}'\n", removed, folder.string());
  }
}

}  // namespace

void add_cache(CLI::App& app, int&) {
  auto arguments = std::make_shared<CacheArguments>();
  CacheArguments& a = *arguments;
  CLI::App* command =
      app.add_subcommand("cache", "Compiled GPU kernels: list, make or remove them");
  command->add_option("ACTION", a.action, "list, warm or clear")
      ->required()
      ->check(CLI::IsMember({"list", "warm", "clear"}));
  command->add_option("--problem", a.problems, "warm: problem line whose kernels to compile");
  command->add_option("--arch", a.arch, "warm: e.g. sm_90a; default: the GPU that is here");
  command->add_option("--algorithm", a.algorithm, "warm: standard, flash or auto");
  command->add_flag("--json", a.json, "print JSON");
  command->footer(
      "The folder is DFA_CACHE_DIR, else XDG_CACHE_HOME/dfa, else ~/.cache/dfa.\n\n"
      "Example: dfa cache warm --arch sm_90a --problem \"fwd bf16 causal b1 h8 s1000 d64\"");
  command->callback([arguments] {
    if (arguments->action == "list") list(*arguments);
    if (arguments->action == "warm") warm(*arguments);
    if (arguments->action == "clear") clear(*arguments);
  });
}

}  // namespace dfa::cli
