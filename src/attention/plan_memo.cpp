#include "attention/plan_memo.h"

#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_map>

namespace dfa {
namespace {

constexpr std::size_t kMost = 512;  // plans, a kilobyte each

struct Question {
  Problem problem;
  PlanOptions options;

  friend bool operator==(const Question& a, const Question& b) {
    return a.problem == b.problem && a.options.backend == b.options.backend &&
           a.options.algorithm == b.options.algorithm && a.options.config == b.options.config &&
           a.options.threads == b.options.threads;
  }
};

// Of what usually differs; equality looks at all.
struct Hash {
  std::size_t operator()(const Question& question) const {
    const Problem& p = question.problem;
    std::uint64_t hash = std::hash<std::string>{}(question.options.config);
    for (const std::int64_t value :
         {static_cast<std::int64_t>(p.pass), static_cast<std::int64_t>(p.dtype), p.b, p.hq, p.sq,
          p.sk, p.d, static_cast<std::int64_t>(p.mask.right),
          static_cast<std::int64_t>(p.mask.chunk), static_cast<std::int64_t>(p.mask.prefix),
          static_cast<std::int64_t>(question.options.algorithm)}) {
      hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

using Plans = std::unordered_map<Question, Plan, Hash>;

struct Memo {
  std::mutex mutex;
  Plans plans;
  Plans of_any_keys;  // the last one, by a question of no keys
};

std::optional<Plan> current_plan(const Plans& plans, const Question& question) {
  const auto found = plans.find(question);
  const bool current = found != plans.end() && found->second.ready.plan->current();
  return current ? std::optional(found->second) : std::nullopt;
}

void insert(Plans& plans, const Question& question, const Plan& plan) {
  if (plans.size() >= kMost) plans.clear();
  plans.insert_or_assign(question, plan);
}

Question without_keys(const Problem& problem, const PlanOptions& options) {
  Question question{problem, options};
  question.problem.sk = 0;
  return question;
}

// Never destroyed: plans hold on to a driver that may be gone before static objects are.
Memo& memo() {
  static auto* const instance = new Memo;
  return *instance;
}

}  // namespace

std::optional<Plan> remembered_plan(const Problem& problem, const PlanOptions& options) {
  const std::lock_guard lock(memo().mutex);
  return current_plan(memo().plans, {problem, options});
}

std::optional<Plan> plan_of_other_keys(const Problem& problem, const PlanOptions& options) {
  const std::lock_guard lock(memo().mutex);
  return current_plan(memo().of_any_keys, without_keys(problem, options));
}

void remember_plan(const Problem& problem, const PlanOptions& options, const Plan& plan) {
  if (plan.ready.plan == nullptr) return;
  const std::lock_guard lock(memo().mutex);
  insert(memo().plans, {problem, options}, plan);
  insert(memo().of_any_keys, without_keys(problem, options), plan);
}

}  // namespace dfa
