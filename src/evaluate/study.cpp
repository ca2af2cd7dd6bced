#include "evaluate/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/enum_table.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/lock_file.h"
#include "dfa/error.h"

namespace dfa::evaluate {
namespace {

namespace fs = std::filesystem;

constexpr auto kStepStatuses = enum_table<StepStatus>({{StepStatus::done, "done"},
                                                       {StepStatus::failed, "failed"},
                                                       {StepStatus::cannot, "cannot"},
                                                       {StepStatus::left, "left"}});
// Of dfa: everything ran, and some of it failed its check; nothing of it can be had here.
constexpr int kSomeWrong = 1, kNotHere = 3;

Json to_json(const StudyRecord& record) {
  Json json = Json::object();
  json["schema"] = kStudySchema;
  json["created"] = record.created;
  json["machine"] = record.machine;
  json["steps"] = Json::array();
  for (const StepRecord& step : record.steps) {
    Json one = Json::object();
    one["name"] = step.name;
    one["question"] = step.question;
    one["status"] = name_of(step.status);
    one["reason"] = step.reason;
    one["seconds"] = step.seconds;
    one["commands"] = step.commands;
    one["outputs"] = step.outputs;
    json["steps"].push_back(std::move(one));
  }
  return json;
}

StepRecord from_json(const Json& json) {
  return {.name = json.at("name").get<std::string>(),
          .question = json.at("question").get<std::string>(),
          .status = kStepStatuses.parse("status", json.at("status").get<std::string>()),
          .reason = json.at("reason").get<std::string>(),
          .seconds = json.at("seconds").get<double>(),
          .commands = json.at("commands").get<std::vector<std::string>>(),
          .outputs = json.at("outputs").get<std::vector<std::string>>()};
}

class Study {
 public:
  Study(const std::vector<StudyStep>& steps, const StudyRun& run) : steps_(steps), run_(run) {}

  StudyRecord operator()() {
    fs::create_directories(run_.out / "log");
    const LockFile alone(run_.out / ".lock", "the study in '" + run_.out.string() + "'");
    open();
    for (std::size_t i = 0; i < steps_.size() && !run_.interrupted(); ++i) {
      if (kept(i)) {
        run_.on_done(record_.steps[i], true);
        continue;
      }
      run_step(i);
      save();
      run_.on_done(record_.steps[i], false);
    }
    save();
    return std::move(record_);
  }

 private:
  // What was done before, in the order of these steps; what the commands no longer ask for is new.
  void open() {
    StudyRecord before = read_record(run_.out);
    if (!before.machine.empty() && before.machine != run_.machine) {
      throw InvalidArgument(
          fmt::format("'{}' holds the study of {}, and this is {}; accepted: "
                      "another folder",
                      run_.out.string(), before.machine, run_.machine));
    }
    record_.created = before.created.empty() ? utc_now() : before.created;
    record_.machine = run_.machine;
    for (const StudyStep& step : steps_) {
      StepRecord fresh{.name = step.name, .question = step.question};
      for (const Command& command : step.commands) fresh.commands.push_back(to_text(command));
      for (const fs::path& file : step.outputs) {
        fresh.outputs.push_back(file.lexically_relative(run_.out).string());
      }
      const auto old = std::find_if(before.steps.begin(), before.steps.end(),
                                    [&](const StepRecord& s) { return s.name == step.name; });
      const bool same = old != before.steps.end() && old->commands == fresh.commands;
      record_.steps.push_back(same ? *old : std::move(fresh));
    }
  }

  bool kept(std::size_t i) const {
    const StudyStep& step = steps_[i];
    return !step.always && record_.steps[i].status == StepStatus::done && complete(step);
  }

  static bool complete(const StudyStep& step) {
    return std::all_of(step.outputs.begin(), step.outputs.end(),
                       [](const fs::path& file) { return fs::exists(file); });
  }

  void run_step(std::size_t i) {
    const StudyStep& step = steps_[i];
    StepRecord& record = record_.steps[i];
    if (!step.cannot.empty()) {
      record.status = StepStatus::cannot;
      record.reason = step.cannot;
      return;
    }
    record.status = StepStatus::left;
    save();  // the report reads it
    run_.on_step({step, i + 1, steps_.size(), left_s(i)});
    const double begin = monotonic_s();
    run_commands(step, record);
    record.seconds = monotonic_s() - begin;
    estimated_s_ += step.estimate_s;
    took_s_ += record.seconds;
  }

  // Dead half way, a file of an earlier run would be taken for a new one.
  void run_commands(const StudyStep& step, StepRecord& record) {
    for (const fs::path& file : step.outputs) {
      fs::create_directories(file.parent_path());
      remove_target(file);
    }
    const fs::path log = run_.out / "log" / (step.name + ".txt");
    remove_target(log);
    record.reason = step.note;
    for (const Command& command : step.commands) {
      const Ended ended = run_command(command, log, run_.interrupted);
      if (run_.interrupted()) return;
      if (step.suite && ended.code == kNotHere) {
        record.status = StepStatus::cannot;
        record.reason = last_line(log);
        return;
      }
      if (!ended.started || ended.signal != 0 || ended.code > kSomeWrong) {
        record.status = StepStatus::failed;
        record.reason = ended.reason + ": " + last_line(log);
        return;
      }
      if (ended.code == kSomeWrong) {
        record.reason += (record.reason.empty() ? "" : "; ") +
                         std::string("something in it failed, see log/") + step.name + ".txt";
      }
    }
    const bool all = complete(step);
    record.status = all ? StepStatus::done : StepStatus::failed;
    if (!all) record.reason = "its files are not there: " + last_line(log);
  }

  // Of a link the file that it leads to: the link is not ours. A device or a pipe stays.
  static void remove_target(const fs::path& file) {
    if (!is_stream(file)) fs::remove(output_target(file));
  }

  static std::string last_line(const fs::path& log) {
    std::string text = fs::exists(log) ? read_file(log) : "";
    while (!text.empty() && text.back() == '\n') text.pop_back();
    if (text.empty()) return "it said nothing";
    const std::size_t begin = text.rfind('\n');
    return begin == std::string::npos ? text : text.substr(begin + 1);
  }

  // By the estimates of what is left, corrected by what steps took so far.
  double left_s(std::size_t from) const {
    double left = 0;
    for (std::size_t i = from; i < steps_.size(); ++i) {
      if (steps_[i].cannot.empty() && !kept(i)) left += steps_[i].estimate_s;
    }
    return estimated_s_ > 0 ? left * took_s_ / estimated_s_ : left;
  }

  void save() const { write_file_atomic(run_.out / "study.json", to_json(record_).dump(1) + "\n"); }

  const std::vector<StudyStep>& steps_;
  const StudyRun& run_;
  StudyRecord record_;
  double estimated_s_ = 0, took_s_ = 0;  // of the steps run now
};

}  // namespace

const char* name_of(StepStatus status) { return kStepStatuses.name(status); }

StudyRecord read_record(const fs::path& out) {
  const fs::path file = out / "study.json";
  if (!fs::exists(file)) return {};
  try {
    const Json json = parse_json(read_file(file, kMostText));
    const auto schema = json.is_object() ? json.find("schema") : json.end();
    if (schema == json.end() || *schema != kStudySchema) throw InvalidArgument("another schema");
    StudyRecord record{.created = json.at("created").get<std::string>(),
                       .machine = json.at("machine").get<std::string>(),
                       .steps = {}};
    for (const Json& step : json.at("steps")) record.steps.push_back(from_json(step));
    return record;
  } catch (const std::exception& error) {
    throw InvalidArgument(fmt::format("'{}' is no record of a study ({}); accepted: {}",
                                      file.string(), error.what(), kStudySchema));
  }
}

StudyRecord run_steps(const std::vector<StudyStep>& steps, const StudyRun& run) {
  return Study(steps, run)();
}

}  // namespace dfa::evaluate
