#include "bench/suites.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "base/enum_table.h"
#include "dfa/error.h"

namespace dfa::bench {
namespace {

using Lines = std::vector<std::string>;
using Values = std::vector<int>;

constexpr auto kScales = enum_table<Scale>({{Scale::cpu, "cpu"}, {Scale::full, "full"}});
constexpr auto kLaunches =
    enum_table<Launch>({{Launch::eager, "eager"},
                        {Launch::graph, "graph"},
                        {Launch::compile, "compile"},
                        {Launch::compile_reduce_overhead, "compile-reduce-overhead"},
                        {Launch::compile_max_autotune, "compile-max-autotune"}});

Values pick(Scale scale, Values cpu, Values full) {
  return scale == Scale::cpu ? std::move(cpu) : std::move(full);
}

// Total tokens kept at 16384 on a GPU, so that every length fills it; one sequence on a CPU.
int batch_for(Scale scale, int length) { return scale == Scale::cpu ? 1 : 16384 / length; }

Lines three_way(Scale scale) {
  Lines lines;
  const int b = scale == Scale::cpu ? 1 : 16;
  for (const char* dtype : {"fp32", "fp16"}) {
    for (const int s : {128, 256, 512, 1024, 2048}) {
      lines.push_back(fmt::format("fwd {} b{} h8 s{} d64", dtype, b, s));
    }
    for (const int batch : pick(scale, {2, 4}, {32, 64, 128})) {
      lines.push_back(fmt::format("fwd {} b{} h8 s512 d64", dtype, batch));
    }
  }
  return lines;
}

Lines sequence(Scale scale) {
  Lines lines;
  const int h = scale == Scale::cpu ? 8 : 32;
  for (const int s : pick(scale, {128, 256, 512, 1024, 2048, 4096},
                          {128, 256, 512, 1024, 2048, 4096, 8192, 16384})) {
    lines.push_back(fmt::format("fwd bf16 b{} h{} s{} d64", batch_for(scale, s), h, s));
  }
  return lines;
}

Lines batch(Scale scale) {
  Lines lines;
  const int s = scale == Scale::cpu ? 256 : 1024;
  for (const int b : pick(scale, {1, 2, 4, 8, 16}, {1, 2, 4, 8, 16, 32, 64, 128})) {
    lines.push_back(fmt::format("fwd bf16 b{} h8 s{} d64", b, s));
  }
  return lines;
}

Lines heads(Scale scale) {
  Lines lines;
  const int b = scale == Scale::cpu ? 1 : 16;
  const int s = scale == Scale::cpu ? 512 : 1024;
  for (const int h : pick(scale, {1, 2, 4, 8, 16, 32}, {1, 2, 4, 8, 16, 32, 64})) {
    lines.push_back(fmt::format("fwd bf16 b{} h{} s{} d64", b, h, s));
  }
  return lines;
}

Lines head_dim(Scale scale) {
  Lines lines;
  const char* shape = scale == Scale::cpu ? "b1 h4 s512" : "b4 h16 s4096";
  for (const int d : {32, 64, 96, 128, 192, 256}) {
    lines.push_back(fmt::format("fwd bf16 {} d{}", shape, d));
  }
  return lines;
}

Lines embedding(Scale scale) {
  Lines lines;
  const int b = scale == Scale::cpu ? 1 : 16;
  const int s = scale == Scale::cpu ? 512 : 1024;
  for (const int width : {256, 512, 768, 1024, 1536, 2048}) {
    lines.push_back(fmt::format("fwd bf16 b{} h{} s{} d64", b, width / 64, s));
  }
  return lines;
}

Lines causal(Scale scale) {
  Lines lines;
  const int h = scale == Scale::cpu ? 8 : 32;
  for (const int s : pick(scale, {256, 512, 1024, 2048}, {512, 1024, 2048, 4096, 8192, 16384})) {
    for (const char* mask : {"full", "causal"}) {
      lines.push_back(fmt::format("fwd bf16 {} b{} h{} s{} d64", mask, batch_for(scale, s), h, s));
    }
  }
  return lines;
}

Lines memory(Scale scale) {
  Lines lines;
  const int h = scale == Scale::cpu ? 4 : 16;
  for (const int s : pick(scale, {256, 512, 1024, 2048, 4096},
                          {512, 1024, 2048, 4096, 8192, 16384, 32768, 65536})) {
    lines.push_back(fmt::format("fwd bf16 b1 h{} s{} d64", h, s));
  }
  return lines;
}

Lines heatmap(Scale scale) {
  Lines lines;
  for (const int b : pick(scale, {1, 2, 4, 8}, {1, 2, 4, 8, 16, 32, 64})) {
    for (const int s : pick(scale, {128, 256, 512, 1024}, {128, 256, 512, 1024, 2048, 4096})) {
      lines.push_back(fmt::format("fwd bf16 b{} h8 s{} d64", b, s));
    }
  }
  return lines;
}

// 48 heads of 64 with growing length on a GPU.
Lines forward_backward(Scale scale) {
  Lines lines;
  const int h = scale == Scale::cpu ? 8 : 48;
  for (const int s : pick(scale, {256, 512, 1024}, {512, 1024, 2048, 4096, 8192, 16384})) {
    for (const char* pass : {"fwd", "bwd", "fwdbwd"}) {
      lines.push_back(fmt::format("{} bf16 b1 h{} s{} d64", pass, h, s));
    }
  }
  return lines;
}

// Packed lists of lengths, each beside the same sequences padded to the longest.
Lines varlen(Scale scale) {
  constexpr const char* kShapes[] = {"hq16 hk16 d128", "hq16 hk4 d128", "hq32 hk8 d64"};
  constexpr std::size_t kFewShapes = 1;
  struct List {
    std::string lengths;
    int count, longest;
  };
  const auto alike = [](int count, int rows) {
    std::string text = std::to_string(rows);
    for (int i = 1; i < count; ++i) text += "," + std::to_string(rows);
    return List{text, count, rows};
  };
  const auto drawn = [](int count) {
    const Problem p = parse_problem(fmt::format("fwd bf16 h1 d64 lens(zipf,{},1)", count));
    return List{fmt::format("{}", fmt::join(p.lens_q, ",")), count, static_cast<int>(p.sq)};
  };
  const std::vector<List> lists =
      scale == Scale::cpu ? std::vector<List>{drawn(8), alike(16, 64), alike(2, 512)}
                          : std::vector<List>{drawn(32), alike(128, 512), alike(8, 2048)};
  const std::size_t shapes = scale == Scale::cpu ? kFewShapes : std::size(kShapes);
  Lines lines;
  for (std::size_t i = 0; i < shapes; ++i) {
    for (const List& list : lists) {
      for (const char* pass : {"fwd", "bwd"}) {
        const std::string head = fmt::format("{} bf16 causal {}", pass, kShapes[i]);
        lines.push_back(fmt::format("{} lens({})", head, list.lengths));
        lines.push_back(fmt::format("{} b{} s{}", head, list.count, list.longest));
      }
    }
  }
  return lines;
}

// Calls as short as launching them takes.
Lines launch(Scale scale) {
  Lines lines;
  for (const int d : {64, 128}) {
    for (const int s : pick(scale, {64, 256}, {64, 128, 256, 512, 1024, 2048})) {
      for (const char* pass : {"fwd", "bwd"}) {
        lines.push_back(fmt::format("{} bf16 causal b1 h16 s{} d{}", pass, s, d));
      }
    }
  }
  return lines;
}

struct Suite {
  SuiteInfo info;
  Lines (*lines)(Scale);
  std::vector<std::string> algorithms;
  std::vector<Launch> launches{Launch::eager};
  int calls = 0;
  bool static_flash = false;
};

const std::vector<Suite>& suites() {
  static const std::vector<Suite> list{
      {{"three_way", "standard, FlashAttention with a fixed tile, and the tile chosen per problem"},
       three_way,
       {"standard", "flash", "dynamic"},
       {Launch::eager},
       0,
       true},
      {{"sequence", "time and throughput against sequence length"},
       sequence,
       {"standard", "flash"}},
      {{"batch", "scaling with the batch"}, batch, {"standard", "flash"}},
      {{"heads", "scaling with the number of heads"}, heads, {"standard", "flash"}},
      {{"head_dim", "cost of the head dimension"}, head_dim, {"standard", "flash"}},
      {{"embedding", "scaling with the model width, heads of 64"},
       embedding,
       {"standard", "flash"}},
      {{"causal", "what the causal mask saves"}, causal, {"standard", "flash"}},
      {{"memory", "peak memory against sequence length"}, memory, {"standard", "flash"}},
      {{"heatmap", "throughput over batch and length"}, heatmap, {"flash"}},
      {{"forward_backward", "forward, backward and both against sequence length"},
       forward_backward,
       {"standard", "flash"}},
      {{"varlen", "packed sequences beside the same ones padded to the longest"},
       varlen,
       {"flash"}},
      {{"launch", "short calls, 32 in a row, made one by one or replayed as a CUDA graph"},
       launch,
       {"flash"},
       {Launch::eager, Launch::graph},
       32},
  };
  return list;
}

}  // namespace

Scale parse_scale(const std::string& text) { return kScales.parse("scale", text); }
const char* name_of(Scale scale) { return kScales.name(scale); }

const std::vector<std::string>& launch_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& [launch, name] : kLaunches) all.emplace_back(name);
    return all;
  }();
  return names;
}

Launch parse_launch(const std::string& text) { return kLaunches.parse("launch", text); }
const char* name_of(Launch launch) { return kLaunches.name(launch); }

const std::vector<std::string>& algorithm_names() {
  static const std::vector<std::string> names{"standard", "flash", "dynamic", "stored"};
  return names;
}

const std::vector<SuiteInfo>& suite_list() {
  static const std::vector<SuiteInfo> list = [] {
    std::vector<SuiteInfo> infos;
    for (const Suite& suite : suites()) infos.push_back(suite.info);
    return infos;
  }();
  return list;
}

std::vector<ProblemGroup> make_suite(const std::string& name, Scale scale) {
  std::string names;
  for (const Suite& suite : suites()) {
    names += (names.empty() ? "" : ", ") + suite.info.name;
    if (suite.info.name != name) continue;
    std::vector<ProblemGroup> groups;
    for (const std::string& line : suite.lines(scale)) {
      groups.push_back({name, parse_problem(line), suite.algorithms, suite.launches, suite.calls,
                        suite.static_flash});
    }
    return groups;
  }
  throw InvalidArgument("suite '" + name + "' is unknown; accepted: " + names + ", " +
                        kSeveralCardsSuite);
}

std::vector<ProblemGroup> parse_problem_list(const std::string& text,
                                             const std::vector<std::string>& algorithms) {
  std::vector<ProblemGroup> groups;
  const bool marked = text.compare(0, 3, "\xEF\xBB\xBF") == 0;  // as editors of Windows begin UTF-8
  std::istringstream lines(text.substr(marked ? 3 : 0));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    try {
      groups.push_back(
          {.suite = "custom", .problem = parse_problem(line), .algorithms = algorithms});
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("problems line {}: {}", number, error.what()));
    }
  }
  if (groups.empty()) throw InvalidArgument("problems: no problem line in the list");
  return groups;
}

}  // namespace dfa::bench
