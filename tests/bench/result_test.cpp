#include "bench/result.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/file.h"
#include "base/json.h"
#include "bench/sample_result.h"
#include "bench/three_way.h"
#include "dfa/error.h"
#include "temp_dir.h"

namespace dfa::bench {
namespace {

using testing::sample_result;

TEST(Result, WhatIsWrittenIsReadBack) {
  Result result = sample_result();
  result.machine.gpu = measure::GpuFacts{"Some GPU", "580", std::nullopt, 132};
  result.cases[0].energy_j = 1.25;
  result.cases[0].throttle.power_pct = 50;
  EXPECT_EQ(parse_result(to_json(result)), result);
}

TEST(Result, WhatIsNotFiniteIsNullInTheFile) {
  Result result = sample_result();
  result.cases[0].check->max_error = std::numeric_limits<double>::infinity();
  result.cases[0].tflops = std::numeric_limits<double>::quiet_NaN();
  const Json json = Json::parse(to_json(result));
  EXPECT_TRUE(json["cases"][0]["check"]["max_error"].is_null());
  EXPECT_TRUE(json["cases"][0]["tflops"].is_null());
}

TEST(Result, UnknownFieldsAreLetPass) {
  Json json = Json::parse(to_json(sample_result()));
  json["cases"][0]["from_the_future"] = 1;
  EXPECT_EQ(parse_result(json.dump()), sample_result());
}

struct Fault {
  void (*plant)(Json&);
  const char* says;
};

TEST(Result, MalformedFilesAreRefusedInOneLineThatNamesThePlace) {
  const Fault faults[] = {
      {[](Json& j) { j["schema"] = "dfa-result/2"; }, "schema: expected"},
      {[](Json& j) { j.erase("schema"); }, "schema: expected"},
      {[](Json& j) { j.erase("cases"); }, "cases: missing"},
      {[](Json& j) { j["cases"] = 3; }, "cases: expected an array, found 3"},
      {[](Json& j) { j["cases"][1].erase("time_ms"); }, "cases[1].time_ms: missing"},
      {[](Json& j) { j["cases"][1]["time_ms"]["median"] = "x"; },
       "cases[1].time_ms.median: expected a number, found \"x\""},
      {[](Json& j) { j["cases"][0]["status"] = "fine"; },
       "cases[0].status: expected one of ok, out_of_memory, unsupported, failed, found \"fine\""},
      {[](Json& j) { j["cases"][0]["time_ms"]["n"] = 2.5; }, "time_ms.n: expected an integer"},
      {[](Json& j) { j["cases"][0]["check"]["ok"] = 1; }, "check.ok: expected true or false"},
      {[](Json& j) { j["cases"][0]["check"]["seed"] = -1; }, "check.seed: expected 0 or more"},
      {[](Json& j) { j["argv"][0] = 5; }, "argv[0]: expected text"},
      {[](Json& j) { j["machine"]["gpu"] = "H200"; }, "machine.gpu: expected an object"},
      {[](Json& j) { j = Json::array(); }, "schema: expected"},
  };
  for (const Fault& fault : faults) {
    Json json = Json::parse(to_json(sample_result()));
    fault.plant(json);
    try {
      parse_result(json.dump());
      ADD_FAILURE() << "accepted a fault that should say: " << fault.says;
    } catch (const InvalidArgument& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find(fault.says), std::string::npos) << what;
      EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    }
  }
}

TEST(Result, TextThatIsNoJsonIsRefusedInOneLine) {
  const std::string whole = to_json(sample_result());
  for (const std::string& text : {std::string(), std::string("{"), whole.substr(0, 500),
                                  std::string("\xff\xfe", 2), std::string("1e999")}) {
    try {
      parse_result(text);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
}

TEST(Result, ReadingNamesTheFile) {
  dfa::testing::TempDir tree;
  const auto path = tree.write("r.json", "{}");
  try {
    read_result(path);
    ADD_FAILURE();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos);
  }
  EXPECT_THROW(read_result(tree.path() / "none.json"), IoError);
}

TEST(ThreeWay, LeavesOneFileAKernelWithNullForWhatWasNotMeasured) {
  dfa::testing::TempDir tree;
  Result result = sample_result();
  result.cases[1].power_avg_w = 120;
  result.cases[1].energy_j = 0.25;
  write_three_way(tree.path(), result);
  const Json baseline = Json::parse(read_file(tree.path() / "baseline_results.json"));
  const Json flash = Json::parse(read_file(tree.path() / "flash_results.json"));
  const Json dynamic = Json::parse(read_file(tree.path() / "dynamic_results.json"));
  ASSERT_EQ(baseline.size(), 2u);
  ASSERT_EQ(flash.size(), 1u);
  ASSERT_EQ(dynamic.size(), 1u);
  EXPECT_EQ(flash[0]["L"], 512);
  EXPECT_EQ(flash[0]["B"], 1);
  EXPECT_EQ(flash[0]["D"], 512);
  EXPECT_EQ(flash[0]["H"], 8);
  EXPECT_EQ(flash[0]["avg_latency_ms"], 2.0);
  EXPECT_EQ(flash[0]["avg_power_watts"], 120.0);
  EXPECT_EQ(flash[0]["energy_joules"], 0.25);
  EXPECT_TRUE(dynamic[0]["avg_power_watts"].is_null());
  EXPECT_TRUE(dynamic[0]["energy_joules"].is_null());
  EXPECT_TRUE(baseline[1]["avg_latency_ms"].is_null());  // the one that ran out of memory
}

}  // namespace
}  // namespace dfa::bench
