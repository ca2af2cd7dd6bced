#include "bench/runner.h"

#include <algorithm>
#include <new>

#include "bench/interleave.h"
#include "dfa/error.h"

namespace dfa::bench {
namespace {

class Measuring {
 public:
  Measuring(const std::vector<Variant>& variants, const MeasureOptions& options, const Clock& clock)
      : variants_(variants), options_(options), clock_(clock), done_(variants.size()) {
    failed_.resize(variants.size());
    results_.resize(variants.size());
    durations_.resize(variants.size());
  }

  std::vector<Measurement> run() {
    start_s_ = clock_.now_s();
    for (std::size_t i = 0; i < variants_.size(); ++i) warm_up(i);
    if (options_.interleave) {
      for (std::uint64_t round = 0; !all_done(); ++round) one_round(round);
    } else {
      for (std::size_t i = 0; i < variants_.size(); ++i) {
        while (!done_[i]) sample(i);
      }
    }
    return std::move(results_);
  }

 private:
  bool all_done() const {
    return std::all_of(done_.begin(), done_.end(), [](bool done) { return done; });
  }

  void warm_up(std::size_t i) {
    for (int run = 0; run < options_.warm_up && !done_[i]; ++run) {
      failed_[i] = done_[i] = !guarded(variants_[i].run, results_[i].status, results_[i].reason);
    }
  }

  // A variant that has had enough keeps its turn, within its budget, while others have not: all see
  // the same drift.
  void one_round(std::uint64_t round) {
    for (const std::size_t i : round_order(variants_.size(), options_.seed, round)) {
      if (!failed_[i] && !options_.stopping.exhausted(durations_[i])) sample(i);
    }
  }

  void sample(std::size_t i) {
    Sample taken;
    const bool ok = guarded(
        [&] {
          const double begin = clock_.now_s();
          taken = {.start_s = begin - start_s_, .duration_s = seconds_of(variants_[i])};
        },
        results_[i].status, results_[i].reason);
    if (ok) keep(i, taken);
    failed_[i] = !ok;
    done_[i] = !ok || options_.stopping.enough(durations_[i]);
  }

  double seconds_of(const Variant& variant) const {
    if (variant.time) return variant.time();
    const double begin = clock_.now_s();
    variant.run();
    return clock_.now_s() - begin;
  }

  void keep(std::size_t i, Sample taken) {
    if (options_.conditions) {
      const Conditions now = options_.conditions();
      taken.clock_hz = now.clock_hz;
      taken.temp_c = now.temp_c;
    }
    results_[i].samples.push_back(taken);
    durations_[i].push_back(taken.duration_s);
    if (options_.on_sample) options_.on_sample();
  }

  const std::vector<Variant>& variants_;
  const MeasureOptions& options_;
  const Clock& clock_;
  std::vector<bool> done_;    // failed, or has had enough
  std::vector<bool> failed_;  // may not run again
  std::vector<Measurement> results_;
  std::vector<std::vector<double>> durations_;
  double start_s_ = 0;
};

}  // namespace

std::vector<double> Measurement::durations() const {
  std::vector<double> values;
  for (const Sample& sample : samples) values.push_back(sample.duration_s);
  return values;
}

std::vector<Measurement> measure(const std::vector<Variant>& variants,
                                 const MeasureOptions& options, const Clock& clock) {
  return Measuring(variants, options, clock).run();
}

bool guarded(const std::function<void()>& body, CaseStatus& status, std::string& reason) {
  try {
    body();
    return true;
  } catch (const OutOfMemory& error) {
    status = CaseStatus::out_of_memory;
    reason = error.what();
  } catch (const std::bad_alloc&) {
    status = CaseStatus::out_of_memory;
    reason = "the host ran out of memory";
  } catch (const Unsupported& error) {
    status = CaseStatus::unsupported;
    reason = error.what();
  } catch (const Error& error) {
    status = CaseStatus::failed;
    reason = error.what();
  }
  return false;
}

}  // namespace dfa::bench
