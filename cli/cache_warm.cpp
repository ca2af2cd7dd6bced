#include "cli/cache_warm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/model_config.h"
#include "cuda/cache.h"
#include "dfa/error.h"
#include "spec/algorithm_name.h"

namespace dfa::cli {
namespace {

// What plans are asked for, and in words.
struct Asked {
  std::vector<Problem> problems;
  std::string text{};  // of a model
};

Asked lines_of(const WarmArguments& arguments) {
  Asked asked;
  for (const std::string& line : arguments.problems) asked.problems.push_back(parse_problem(line));
  if (arguments.problem_file.empty()) return asked;
  std::istringstream lines(read_file(arguments.problem_file, kMostText));
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.front() != '#') asked.problems.push_back(parse_problem(line));
  }
  return asked;
}

template <typename Value>
Value one_of(const char* option, const std::string& text,
             const std::map<std::string, Value>& values) {
  if (const auto found = values.find(text); found != values.end()) return found->second;
  std::string accepted;
  for (const auto& [name, value] : values) accepted += (accepted.empty() ? "" : ", ") + name;
  throw InvalidArgument(fmt::format("cache warm: {} '{}'; accepted: {}", option, text, accepted));
}

DType dtype_of(const ModelAttention& model, const std::string& asked) {
  if (!asked.empty()) {
    return one_of<DType>("--dtype", asked,
                         {{"bf16", DType::bf16}, {"fp16", DType::fp16}, {"fp32", DType::fp32}});
  }
  if (model.dtype) return *model.dtype;
  throw InvalidArgument(
      "cache warm: the model's configuration says no dtype; accepted: --dtype bf16, fp16 or fp32");
}

// Up to 8192 positions, or what the model has.
std::string usual_lengths(const ModelAttention& model) {
  const std::int64_t most = model.longest > 0 ? std::min<std::int64_t>(model.longest, 8192) : 8192;
  return fmt::format("{}-{}", std::min<std::int64_t>(most, 64), most);
}

Asked calls_of_model(const WarmArguments& arguments) {
  const ModelAttention model = read_model(arguments.model);
  const std::string lengths = arguments.lengths.empty() ? usual_lengths(model) : arguments.lengths;
  ModelCalls calls{.batches = parse_sizes("cache warm: --batch", arguments.batches),
                   .lengths = parse_sizes("cache warm: --length", lengths)};
  calls.pass = one_of<Pass>(
      "--pass", arguments.pass,
      {{"fwd", Pass::forward}, {"bwd", Pass::backward}, {"fwdbwd", Pass::forward_backward}});
  calls.dtype = dtype_of(model, arguments.dtype);
  calls.deterministic = arguments.deterministic;
  Asked asked{.problems = problems_of(model, calls)};
  asked.text = fmt::format("{}, {} {}, batches {}, lengths {}", to_text(model), arguments.pass,
                           name_of(calls.dtype), arguments.batches, lengths);
  return asked;
}

Asked asked_for(const WarmArguments& arguments) {
  const bool lines = !arguments.problems.empty() || !arguments.problem_file.empty();
  if (lines == !arguments.model.empty()) {
    throw InvalidArgument(
        "cache warm: --problem is required, as often as wanted; or --problems with a file of such "
        "lines; or --model with a config.json, and then no lines");
  }
  return lines ? lines_of(arguments) : calls_of_model(arguments);
}

Json to_json(const cuda::WarmKernel& kernel) {
  return {{"name", kernel.wanted.name}, {"kernel", kernel.wanted.name_expression},
          {"arch", kernel.wanted.arch}, {"origin", kernel.origin},
          {"digest", kernel.digest},    {"registers", kernel.registers},
          {"time_s", kernel.time_s},    {"note", kernel.note},
          {"warning", kernel.warning}};
}

// What was had, told as it comes.
class Account {
 public:
  Account(bool json, std::size_t all) : json_(json), all_(all) {}

  void add(const cuda::WarmKernel& kernel) {
    ++done_;
    if (kernel.error != nullptr) {
      ++failed_;
      if (error_ == nullptr) error_ = kernel.error;
      return;
    }
    ++origins_[kernel.origin];
    kernels_.push_back(to_json(kernel));
    if (!kernel.kept && not_kept_.empty()) not_kept_ = kernel.note;
    if (json_) return;
    fmt::print("{:<9} {:>4}/{} {:6.2f} s {:>4} registers  {}{}\n", kernel.origin, done_, all_,
               kernel.time_s, kernel.registers, kernel.wanted.name_expression,
               kernel.note.empty() ? "" : " (" + kernel.note + ")");
    if (!kernel.warning.empty()) fmt::print("warning: {}\n", kernel.warning);
    std::fflush(stdout);
  }

  // "31 kernels for sm_90a in 12.1 s: 20 compiled, 11 on disk".
  std::string summary(const std::string& arch, double seconds) const {
    std::string text = fmt::format("{} kernels for {} in {:.1f} s", done_ - failed_, arch, seconds);
    const char* before = ": ";
    for (const auto& [origin, count] : origins_) {
      text += fmt::format("{}{} {}", before, count, origin == "disk" ? "on disk" : origin);
      before = ", ";
    }
    return text;
  }

  const Json& kernels() const { return kernels_; }

  // What the command is for was not done.
  void demand_all() const {
    if (failed_ > 1 && all_ > failed_) {
      fmt::print(stderr, "dfa: cache warm: {} of {} kernels cannot be had\n", failed_, all_);
    }
    if (error_ != nullptr) std::rethrow_exception(error_);
    if (!not_kept_.empty()) throw IoError("cache warm: " + not_kept_);
  }

 private:
  bool json_;
  std::size_t all_, done_ = 0, failed_ = 0;
  std::map<std::string, int> origins_;
  Json kernels_ = Json::array();
  std::string not_kept_;
  std::exception_ptr error_;
};

int jobs_of(const WarmArguments& arguments) {
  constexpr unsigned kMost = 8;  // a compilation takes a few hundred MB
  if (arguments.jobs > 0) return arguments.jobs;
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, kMost));
}

// One that was asked for by a line is an error; of a model or a file the others are had.
void tell_refused(const WarmArguments& arguments, const cuda::WantedKernels& wanted) {
  if (wanted.refused.empty()) return;
  const auto& [line, why] = wanted.refused.front();
  if (!arguments.problems.empty() || wanted.kernels.empty()) throw Unsupported(why);
  if (!arguments.json)
    fmt::print("{} problems cannot run there, such as {}: {}\n", wanted.refused.size(), line, why);
}

Json refused_json(const cuda::WantedKernels& wanted) {
  Json refused = Json::array();
  for (const auto& [line, why] : wanted.refused)
    refused.push_back({{"problem", line}, {"reason", why}});
  return refused;
}

}  // namespace

void warm_kernel_cache(const WarmArguments& arguments) {
  const double start = monotonic_s();
  const Asked asked = asked_for(arguments);
  const cuda::WantedKernels wanted =
      cuda::wanted_kernels(asked.problems, {.arch = arguments.arch, .sm_count = arguments.sm_count},
                           parse_algorithm(arguments.algorithm));
  tell_refused(arguments, wanted);
  if (!arguments.json && !asked.text.empty()) {
    fmt::print("{}: {} problems, {} kernels\n", asked.text, asked.problems.size(),
               wanted.kernels.size());
  }
  Account account(arguments.json, wanted.kernels.size());
  cuda::warm_kernels(wanted.kernels, jobs_of(arguments),
                     [&](const cuda::WarmKernel& kernel) { account.add(kernel); });
  if (arguments.json) {
    const Json json{{"schema", "dfa-cache/1"},
                    {"folder", cuda::cache_folder().string()},
                    {"kernels", account.kernels()},
                    {"refused", refused_json(wanted)}};
    fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
  } else if (!wanted.kernels.empty()) {
    fmt::print("{}; the cache is '{}'\n",
               account.summary(wanted.kernels.front().arch, monotonic_s() - start),
               cuda::cache_folder().string());
  }
  std::fflush(stdout);
  account.demand_all();
}

}  // namespace dfa::cli
