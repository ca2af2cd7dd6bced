#include "cuda/cache.h"

#include <fmt/format.h>

#include <cctype>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "cli/cache_warm.h"
#include "cli/command.h"
#include "cli/unused.h"
#include "cli/values.h"

namespace dfa::cli {
namespace {

struct CacheArguments {
  std::string action;
  WarmArguments warm;
};

// "90a" is sm_90a.
std::string arch_of(const std::string& text) {
  return text.empty() || std::isdigit(static_cast<unsigned char>(text.front())) == 0 ? text
                                                                                     : "sm_" + text;
}

std::string dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json to_json(const cuda::CacheEntry& entry) {
  return {{"kernel", entry.name_expression}, {"arch", entry.arch},
          {"compiler", entry.compiler},      {"bytes", entry.bytes},
          {"digest", entry.digest},          {"intact", entry.intact.ok},
          {"reason", entry.intact.reason}};
}

Json to_json(const cuda::PackagedInfo& info) {
  return {{"folder", info.folder.string()},
          {"kernels", info.kernels},
          {"usable", info.usable},
          {"works", info.works},
          {"text", info.text}};
}

void list(const CacheArguments& arguments) {
  const std::filesystem::path folder = cuda::cache_folder();
  const std::vector<cuda::CacheEntry> entries = cuda::list_cache(folder);
  const cuda::PackagedInfo packaged = cuda::packaged_info();
  if (arguments.warm.json) {
    Json json{{"schema", "dfa-cache/1"}, {"folder", folder.string()}, {"kernels", Json::array()}};
    for (const cuda::CacheEntry& entry : entries) json["kernels"].push_back(to_json(entry));
    json["packaged"] = to_json(packaged);
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
  fmt::print("packaged: {}\n", packaged.text);
}

void clear(const CacheArguments& arguments) {
  const std::filesystem::path folder = cuda::cache_folder();
  const int removed = cuda::clear_cache(folder);
  if (arguments.warm.json) {
    fmt::print(
        "{}", dump({{"schema", "dfa-cache/1"}, {"folder", folder.string()}, {"removed", removed}}));
  } else {
    fmt::print("{} kernels removed from '{}'\n", removed, folder.string());
  }
}

}  // namespace

namespace {

void add_model_options(CLI::App& command, WarmArguments& a) {
  CLI::Option* const model = command.add_option(
      "--model", a.model,
      "warm: config.json of a model of Hugging Face's transformers, or its folder");
  for (CLI::Option* option :
       {command.add_option("--pass", a.pass, "warm, of a model: fwd (default), bwd or fwdbwd"),
        command.add_option("--dtype", a.dtype,
                           "warm, of a model: bf16, fp16 or fp32; default: its own"),
        command.add_option("--batch", a.batches,
                           "warm, of a model: sequences at once, e.g. 1,4,16-64; default: 1-8"),
        command.add_option("--length", a.lengths,
                           "warm, of a model: tokens, e.g. 512-4096; default: 64 to what it has, "
                           "at most 8192"),
        command.add_flag("--deterministic", a.deterministic,
                         "warm, of a model: deterministic gradients")}) {
    option->needs(model);
  }
}

void add_warm_options(CLI::App& command, WarmArguments& a) {
  command.add_option("--problem", a.problems, "warm: problem line whose kernels to compile");
  command.add_option("--problems", a.problem_file, "warm: a file of problem lines");
  add_model_options(command, a);
  command.add_option("--arch,--sm", a.arch,
                     "warm: e.g. sm_90a or 90a; default: the GPU that is here");
  command
      .add_option("--sms", a.sm_count,
                  "warm: multiprocessors of the card; default: of the GPU that is here, else 132")
      ->check(whole_number(1, 4096));
  command.add_option("--algorithm", a.algorithm, "warm: standard, flash or auto");
  command
      .add_option("--jobs", a.jobs,
                  "warm: kernels compiled at once; default: the processors, at most 8")
      ->check(whole_number(1, 256));
}

}  // namespace

void add_cache(CLI::App& app, int&) {
  auto arguments = std::make_shared<CacheArguments>();
  CLI::App* command =
      app.add_subcommand("cache", "Compiled GPU kernels: list, make or remove them");
  command->add_option("ACTION", arguments->action, "list, warm or clear")
      ->required()
      ->check(CLI::IsMember({"list", "warm", "clear"}));
  add_warm_options(*command, arguments->warm);
  command->add_flag("--json", arguments->warm.json, "print JSON");
  command->footer(
      "The folder is DFA_CACHE_DIR, else XDG_CACHE_HOME/dfa, else ~/.cache/dfa. What the package\n"
      "dfa-attention-kernels (DFA_KERNELS) has is not compiled again.\n\n"
      "Example: dfa cache warm --arch sm_90a --problem \"fwd bf16 causal b1 h8 s1000 d64\"\n"
      "         dfa cache warm --sm 90a --model Llama-3.1-8B/config.json --batch 1-16");
  command->callback([arguments, command] {
    if (arguments->action != "warm") {
      refuse_unused(
          *command, "cache " + arguments->action,
          {"--problem", "--problems", "--model", "--arch", "--sms", "--algorithm", "--jobs"},
          "with warm");
    }
    arguments->warm.arch = arch_of(arguments->warm.arch);
    if (arguments->action == "list") list(*arguments);
    if (arguments->action == "warm") warm_kernel_cache(arguments->warm);
    if (arguments->action == "clear") clear(*arguments);
  });
}

}  // namespace dfa::cli
