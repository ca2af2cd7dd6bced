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
          static_cast<std::int64_t>(question.options.algorithm)}) {
      hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

struct Memo {
  std::mutex mutex;
  std::unordered_map<Question, Plan, Hash> plans;
};

// Never destroyed: plans hold on to a driver that may be gone before static objects are.
Memo& memo() {
  static auto* const instance = new Memo;
  return *instance;
}

}  // namespace

std::optional<Plan> remembered_plan(const Problem& problem, const PlanOptions& options) {
  const std::lock_guard lock(memo().mutex);
  const auto found = memo().plans.find({problem, options});
  if (found == memo().plans.end() || !found->second.ready.plan->current()) return std::nullopt;
  return found->second;
}

void remember_plan(const Problem& problem, const PlanOptions& options, const Plan& plan) {
  if (plan.ready.plan == nullptr) return;
  const std::lock_guard lock(memo().mutex);
  if (memo().plans.size() >= kMost) memo().plans.clear();
  memo().plans.insert_or_assign({problem, options}, plan);
}

}  // namespace dfa
