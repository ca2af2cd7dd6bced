// What `skip` of Hopper's forward gives and costs (docs/design/0015-hopper-forward.md): time and
// joules of the planned tile with it and without, in turns, on logits that make whole tiles count
// for nothing, on those of a trained model and on normal ones. Every way is held against fp64 on
// the very inputs. Prints a table.
//
// skip_saving [--seconds 1.5] [--rounds 2] [--inputs normal texts bias model] [--model FILE]
// from the repository's root, or with the file named
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "attention/registry.h"
#include "base/aligned.h"
#include "base/element.h"
#include "base/fill.h"
#include "base/safetensors.h"
#include "bench/energy.h"
#include "bench/statistics.h"
#include "bench/telemetry.h"
#include "bench/workload.h"
#include "sensors/system_clock.h"

namespace dfa {
namespace {

struct Inputs {
  std::string name;
  Problem problem;
  AlignedBuffer q, k, v;

  Inputs(std::string title, const std::string& line)
      : name(std::move(title)), problem(parse_problem(line)), q(bytes()), k(bytes()), v(bytes()) {
    std::uint64_t seed = 1;
    for (AlignedBuffer* one : {&q, &k, &v})
      fill_normal(one->data(), problem.dtype, count(), seed++);
  }

  // q, k and v are alike in all problems here.
  std::int64_t count() const { return problem.b * problem.hq * problem.sq * problem.d; }
  std::int64_t rows() const { return problem.b * problem.hq * problem.sq; }
  std::size_t bytes() const { return static_cast<std::size_t>(count() * bytes_of(problem.dtype)); }

  void set(AlignedBuffer& to, std::int64_t row, std::int64_t column, float value) const {
    store_element(to.data(), problem.dtype, row * problem.d + column, value);
  }
  float get(const AlignedBuffer& from, std::int64_t row, std::int64_t column) const {
    return load_element(from.data(), problem.dtype, row * problem.d + column);
  }
};

Inputs normal(const std::string& line) { return {"normal", line}; }

// Texts of `tokens` in one sequence, as packed for training: a logit within one is 32 (natural)
// above those between two.
Inputs packed_texts(const std::string& line, std::int64_t tokens) {
  Inputs t(fmt::format("texts of {} tokens", tokens), line);
  const auto lift = static_cast<float>(std::sqrt(32 / t.problem.softmax_scale()));
  for (std::int64_t row = 0; row < t.rows(); ++row) {
    const std::int64_t column = row % t.problem.sq / tokens;
    if (column >= t.problem.d) throw InvalidArgument("more texts than columns");
    t.set(t.q, row, column, t.get(t.q, row, column) + lift);
    t.set(t.k, row, column, t.get(t.k, row, column) + lift);
  }
  return t;
}

// Logits fall by `slope` (natural) for every key that lies further back. bf16 has 8 bits of a key's
// place in one column, so two have it: its 128s and what is left.
Inputs distance_bias(const std::string& line, float slope) {
  Inputs t(fmt::format("bias of {} a key", slope), line);
  const auto per_key = slope / static_cast<float>(t.problem.softmax_scale());
  for (std::int64_t row = 0; row < t.rows(); ++row) {
    const std::int64_t place = row % t.problem.sk;
    t.set(t.q, row, 0, 128 * per_key);
    t.set(t.q, row, 1, per_key);
    t.set(t.k, row, 0, static_cast<float>(place / 128));
    t.set(t.k, row, 1, static_cast<float>(place % 128));
  }
  return t;
}

// A trained model's first layer on a real text, 12 heads of 32 columns, the others 0, the same in
// every batch.
Inputs trained_model(const std::string& file) {
  Inputs t("trained model, layer 0", "fwd bf16 b128 h12 s331 d64 scale(0.17677669)");
  const auto fill = [&](const char* name, AlignedBuffer& to) {
    const Array array = read_safetensors(file, name);
    const std::int64_t rows = array.count() / 32;
    for (std::int64_t row = 0; row < t.rows(); ++row) {
      for (std::int64_t column = 0; column < 64; ++column) {
        const double value = column < 32 ? array.at(row % rows * 32 + column) : 0;
        t.set(to, row, column, static_cast<float>(value));
      }
    }
  };
  fill("q", t.q);
  fill("k", t.k);
  fill("v", t.v);
  return t;
}

struct Way {
  std::string config;
  bench::Prepared plans;
  std::vector<double> seconds, joules;
};

void measure(const Inputs& inputs, double seconds, int rounds) {
  bench::Workload work(inputs.problem, "cuda", 1,
                       {.q = inputs.q.data(), .k = inputs.k.data(), .v = inputs.v.data()});
  sensors::SystemClock clock;
  const bench::Telemetry telemetry =
      bench::open_telemetry(find_backend("cuda").gpu_identity(), clock);
  std::vector<Way> ways{{"ForwardConfig{target=cuda_sm90}", {}, {}, {}},
                        {"ForwardConfig{target=cuda_sm90,skip=true}", {}, {}, {}}};
  bool right = true;
  for (Way& way : ways) {
    way.plans = bench::prepare(inputs.problem, {.backend = "cuda", .config = way.config});
    right = right && work.check(way.plans, {}).ok;
  }
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < ways.size(); ++i) {
      Way& way = ways[round % 2 == 0 ? i : ways.size() - 1 - i];
      constexpr int kTimes = 10;
      for (int burst = 0; burst < 3; ++burst) {
        way.seconds.push_back(work.time_s(way.plans, kTimes) / kTimes);
      }
      const auto energy =
          bench::measure_energy([&] { work.run(way.plans, kTimes); }, seconds, telemetry, clock);
      way.joules.push_back(energy.energy_j.value_or(std::numeric_limits<double>::quiet_NaN()) /
                           kTimes);
    }
  }
  const auto median = [](const std::vector<double>& values) {
    return bench::summarize(values).median;
  };
  const double off_s = median(ways[0].seconds), on_s = median(ways[1].seconds);
  const double off_j = median(ways[0].joules), on_j = median(ways[1].joules);
  fmt::print("{:24} {:46} {:8.1f} {:8.1f} {:6.3f} {:9.2f} {:9.2f} {:6.3f}  {}\n", inputs.name,
             to_line(inputs.problem), 1e6 * off_s, 1e6 * on_s, off_s / on_s, 1e3 * off_j,
             1e3 * on_j, off_j / on_j, right ? "met" : "MISSED");
  std::fflush(stdout);
  if (!right) throw Error("skip_saving: the rule is not met");
}

void run(double seconds, int rounds, const std::set<std::string>& wanted,
         const std::string& model) {
  const std::string wide = "b4 h16 s4096 d128", narrow = "b4 h32 s4096 d64";
  fmt::print("{:24} {:46} {:>8} {:>8} {:>6} {:>9} {:>9} {:>6}  rule\n", "inputs", "problem",
             "off us", "skip us", "speed", "off mJ", "skip mJ", "joules");
  const auto both = [&](const auto& make) {
    for (const std::string& size : {wide, narrow}) {
      for (const std::string mask : {"", "causal "}) {
        measure(make("fwd bf16 " + mask + size), seconds, rounds);
      }
    }
  };
  if (wanted.contains("normal")) both(normal);
  if (wanted.contains("texts")) {
    both([](const std::string& line) { return packed_texts(line, 512); });
    both([](const std::string& line) { return packed_texts(line, 128); });
  }
  if (wanted.contains("bias")) {
    both([](const std::string& line) { return distance_bias(line, 0.0625F); });
  }
  if (wanted.contains("model")) measure(trained_model(model), seconds, rounds);
}

}  // namespace
}  // namespace dfa

int main(int argc, char** argv) {
  double seconds = 1.5;
  int rounds = 2;
  std::set<std::string> inputs{"normal", "texts", "bias", "model"};
  std::string model = "examples/data/minilm_layer0_qkv.safetensors";
  CLI::App app("What skip of Hopper's forward gives and costs, in time and joules");
  app.add_option("--seconds", seconds, "of each window of joules")->check(CLI::PositiveNumber);
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber);
  app.add_option("--inputs", inputs, "which of them")
      ->check(CLI::IsMember({"normal", "texts", "bias", "model"}))
      ->capture_default_str();
  app.add_option("--model", model, "q, k and v of a trained model")->check(CLI::ExistingFile);
  CLI11_PARSE(app, argc, argv);
  try {
    dfa::run(seconds, rounds, inputs, model);
  } catch (const dfa::Error& error) {
    fmt::print(stderr, "skip_saving: {}\n", error.what());
    return 3;
  }
}
