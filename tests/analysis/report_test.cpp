#include "analysis/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string_view>

#include "analysis/worked_example.h"
#include "dfa/error.h"

namespace dfa::analysis {
namespace {

Analysis on(const char* line, const char* machine = "h200") {
  AnalyzeOptions options;
  options.machines = machines_named(machine);
  return analyze(parse_problem(line), options);
}

// Every number by hand. One tensor: 16 heads x 1024 x 64 x 2 bytes = 2 MiB. One score matrix:
// 16 x 1024 x 1024 x 2 = 32 MiB. Operations: 4 x 16 x 1024 x 1024 x 64 = 2^32.
TEST(Report, H200ForwardBf16OfSixteenHeadsOf64At1024) {
  const Analysis a = on("fwd bf16 b1 h16 s1024 d64");
  constexpr double kTensor = 2 << 20, kScores = 32 << 20, kFlops = 4294967296.0;
  ASSERT_EQ(a.machines.size(), 2u);
  ASSERT_EQ(a.machines[0].costs.size(), 2u);
  const PassCost& standard = a.machines[0].costs[0];
  const PassCost& flash = a.machines[0].costs[1];
  EXPECT_EQ(total_flops(standard.products), kFlops);
  EXPECT_EQ(total_flops(flash.products), kFlops);
  EXPECT_EQ(standard.traffic.bytes(), 4 * kTensor + 4 * kScores);
  EXPECT_EQ(flash.traffic.bytes(), 4 * kTensor + 16 * 1024 * 4);
  EXPECT_EQ(a.standard.total(), 4 * kTensor + 2 * kScores);
  EXPECT_EQ(a.flash.total(), 4 * kTensor + 16 * 1024 * 4);
  // 142.6 MB at 4.8 TB/s; 4.295 GFLOP at 989.5 TFLOP/s.
  EXPECT_TRUE(standard.roof->memory_bound);
  EXPECT_NEAR(standard.roof->time_s, 29.71e-6, 0.01e-6);
  EXPECT_NEAR(standard.roof->intensity, 30.12, 0.01);
  EXPECT_FALSE(flash.roof->memory_bound);
  EXPECT_NEAR(flash.roof->time_s, 4.341e-6, 0.001e-6);
  EXPECT_NEAR(flash.roof->intensity, 508.0, 0.1);
  // S and P take 64 s^2 bytes: 52,428,800 bytes of L2 hold them up to 905.
  EXPECT_EQ(memory_bound_from(a.machines[0].regimes), 906);
  // 16 d_model^2 = 2 s d_model 2: length 4 d_model.
  EXPECT_EQ(*a.attention_equals_mlp, 4096);
  EXPECT_EQ(a.mlp.forward, 16.0 * 1024 * 1024 * 1024);
  EXPECT_EQ(a.projections.forward, 8.0 * 1024 * 1024 * 1024);
}

TEST(Report, FlashNeverMovesMoreThanItWouldWithoutACache) {
  for (const char* machine : {"h200", "h100", "a100", "t4"}) {
    for (const char* line :
         {"fwdbwd fp16 b8 h16 s4096 d64", "fwdbwd fp32 causal b1 h2 s100 d256"}) {
      const Analysis a = on(line, machine);
      for (const PassCost& cost : a.machines[0].costs) {
        EXPECT_LE(cost.traffic.bytes(), cost.uncached_bytes);
      }
      EXPECT_LT(a.machines[0].costs[1].traffic.bytes(), a.machines[0].costs[0].traffic.bytes());
    }
  }
}

TEST(Report, AnUnknownRateLeavesTheRooflineOutAndSaysWhy) {
  const Analysis a = on("fwd bf16 h1 s64 d64", "t4");
  EXPECT_FALSE(a.machines[0].costs[0].roof);
  EXPECT_NE(a.machines[0].no_roof.find("bf16"), std::string::npos);
  const Json json = to_json(a);
  EXPECT_TRUE(json["machines"][0]["costs"][0]["roofline"].is_null());
  EXPECT_TRUE(json["machines"][0]["machine"]["peak_flops"]["bf16"].is_null());
  EXPECT_NE(to_text(a).find("not offered"), std::string::npos);
}

TEST(Report, TheTileAskedForIsUsedAndSaidNotToFit) {
  AnalyzeOptions options;
  options.machines = machines_named("t4");
  options.forward = ForwardConfig{.element = DType::fp16, .block_q = 512, .block_k = 512};
  const Analysis a = analyze(parse_problem("fwd fp16 h1 s1024 d64"), options);
  EXPECT_EQ(a.machines[0].forward.block_q, 512);
  EXPECT_FALSE(a.machines[0].forward_fits);
  options.forward->head_dim = 128;
  EXPECT_THROW(analyze(parse_problem("fwd fp16 h1 s1024 d64"), options), InvalidArgument);
}

TEST(Report, BadSramIsRefused) {
  AnalyzeOptions options;
  options.machines = machines_named("t4");
  for (const std::int64_t sram : {-1LL, 0LL, 100LL}) {
    options.sram_bytes = sram;
    EXPECT_THROW(analyze(parse_problem("fwd fp16 h1 s64 d64"), options), InvalidArgument);
  }
}

// The program's name comes before such a line: "dfa: analyze: …".
TEST(Report, WhatIsNotCountedIsRefused) {
  for (const char* line :
       {"fwdbwd bf16 h1 s64 d64 mask_mod(kv_idx<=q_idx)", "fwd bf16 h1 d64 lens(3,5)"}) {
    try {
      analyze(parse_problem(line), {});
      ADD_FAILURE() << line;
    } catch (const Unsupported& error) {
      EXPECT_TRUE(std::string_view(error.what()).starts_with("analyze: ")) << error.what();
    }
  }
  const double plain = on("fwdbwd bf16 h1 s64 d64").flash.total();
  EXPECT_EQ(on("fwdbwd bf16 h1 s64 d64 bias(1,h)").flash.total() - plain, 64 * 64 * (2 + 4));
  // Tanh and the like are not counted of any problem, and take no bytes.
  EXPECT_NO_THROW(
      analyze(parse_problem("fwdbwd bf16 h1 s64 d64 softcap(3) score_mod(score*2)"), {}));
}

TEST(Report, RowsThatSeeNothingGiveFiniteNumbers) {
  // Queries 0 and 1 stand before the first key.
  const Analysis a = on("fwdbwd bf16 h1 sq4 sk2 d8 window(0,0)");
  EXPECT_EQ(a.visible_pairs, 2);
  for (const PassCost& cost : a.machines[0].costs) {
    ASSERT_TRUE(cost.roof);
    EXPECT_TRUE(std::isfinite(cost.roof->time_s)) << cost.pass << " " << cost.algorithm;
    EXPECT_GT(cost.roof->time_s, 0);
  }
}

TEST(Report, JsonHoldsTheSchemaAndEveryPart) {
  const Json json = to_json(on("fwdbwd bf16 causal b2 hq8 hk2 sq512 sk1024 d128"));
  EXPECT_EQ(json["schema"], "dfa-analysis/1");
  EXPECT_EQ(json["problem"], "fwdbwd bf16 causal b2 hq8 hk2 sq512 sk1024 d128");
  EXPECT_EQ(json["footprint"]["by_length"].size(), 10u);
  const Json& machine = json["machines"][1];
  EXPECT_EQ(machine["machine"]["source"], "measured");
  EXPECT_EQ(machine["costs"].size(), 4u);
  for (const Json& cost : machine["costs"]) {
    double bytes = 0, flops = 0;
    for (const Json& step : cost["steps"]) {
      bytes += step["read_bytes"].get<double>() + step["write_bytes"].get<double>();
    }
    for (const Json& product : cost["products"]) flops += product["flops"].get<double>();
    EXPECT_DOUBLE_EQ(bytes, cost["memory_bytes"].get<double>());
    EXPECT_DOUBLE_EQ(flops, cost["executed_flops"].get<double>());
  }
  EXPECT_FALSE(machine["io_complexity"].is_null());
  EXPECT_FALSE(machine["fitting_tiles"].empty());
}

TEST(Report, TextStaysWithinATerminal) {
  const std::string text =
      to_text(on("fwdbwd bf16 causal b64 hq128 hk8 sq65536 sk65536 d128")) + worked_example_text();
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = text.find('\n', begin);
    EXPECT_LE(end - begin, 100u) << text.substr(begin, end - begin);
    begin = end + 1;
  }
}

const PublishedNumber& row(const std::vector<PublishedNumber>& rows, const std::string& what) {
  for (const PublishedNumber& number : rows) {
    if (number.what == what) return number;
  }
  throw InvalidArgument("no row " + what);
}

TEST(WorkedExample, FourOfTheSixNumbersComeOutWithinRounding) {
  const auto rows = worked_example();
  ASSERT_EQ(rows.size(), 6u);
  for (const PublishedNumber& number : rows) {
    EXPECT_EQ(rounds_to_published(number), number.agreement != Agreement::bound) << number.what;
  }
  EXPECT_EQ(row(rows, "traffic, standard").agreement, Agreement::derived);
  EXPECT_EQ(row(rows, "operations, flash").agreement, Agreement::fitted);
}

// b h N N = 2^30 scores of 2 bytes and b h N d = 2^26 elements of 2 bytes.
TEST(WorkedExample, TrafficByHand) {
  const auto rows = worked_example();
  constexpr double kScores = 2147483648.0, kTensor = 134217728.0, kRow = 4194304.0;
  EXPECT_DOUBLE_EQ(row(rows, "traffic, standard").computed, (18 * kScores + 12 * kTensor) / 1e9);
  EXPECT_DOUBLE_EQ(row(rows, "traffic, flash").computed, 33 * kTensor / 1e9);
  // What the note says of the row statistics: 7 passes in the forward, 8 in the backward.
  EXPECT_NEAR((33 * kTensor + 15 * kRow) / 1e9, 4.49, 0.005);
}

TEST(WorkedExample, OperationsByHand) {
  const auto rows = worked_example();
  EXPECT_DOUBLE_EQ(row(rows, "operations, standard").computed, 62 * 1.073741824);
  EXPECT_DOUBLE_EQ(row(rows, "operations, flash").computed, 70 * 1.073741824);
  EXPECT_DOUBLE_EQ(row(rows, "operations, standard").direct, 6 * 128 * 1.073741824);
  EXPECT_DOUBLE_EQ(row(rows, "operations, flash").direct, 7 * 128 * 1.073741824);
}

TEST(WorkedExample, NoMeasuredTimeBeatsItsBound) {
  const auto rows = worked_example();
  for (const char* what : {"time, standard", "time, flash"}) {
    EXPECT_LT(row(rows, what).computed, row(rows, what).published);
    EXPECT_GT(row(rows, what).computed, 0.3 * row(rows, what).published);
  }
}

}  // namespace
}  // namespace dfa::analysis
