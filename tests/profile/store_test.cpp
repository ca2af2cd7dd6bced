#include "profile/store.h"

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "base/random.h"
#include "dfa/error.h"
#include "profile/frontier.h"
#include "profile/json.h"
#include "temp_dir.h"

namespace dfa::profile {
namespace {

using testing::TempDir;

Row sample_row(const std::string& config = "tile 128", double time_s = 1e-3) {
  return {.machine = {"H200 GPU-1", "580.1", "0.1.0"},
          .problem = "fwd bf16 b1 hq8 hk8 sq1024 sk1024 d64",
          .backend = "cuda",
          .point = {.label = config,
                    .dtype = DType::fp16,
                    .time_s = time_s,
                    .power_w = 650.25,
                    .energy_j = 0.65,
                    .dynamic_w = 730,
                    .clock_share = 0.92,
                    .error = 1e-3,
                    .stores_probabilities = true,
                    .memory_bytes = 1 << 20},
          .spread = 0.01,
          .temp_c = std::nullopt,
          .date = "2026-01-31T12:00:00Z"};
}

std::string text(const std::vector<Row>& rows) { return to_json(rows); }

TEST(Store, KeepsRowsWhole) {
  const TempDir folder;
  const Row row = sample_row();
  {
    Store store(folder / "sub/p.db");
    store.put(row);
  }
  const Store again(folder / "sub/p.db");
  EXPECT_EQ(text(again.rows()), text({row}));
}

TEST(Store, ReplacesTheSameConfigurationOnly) {
  const TempDir folder;
  Store store(folder / "p.db");
  store.put(sample_row("a", 2));
  store.put(sample_row("b", 3));
  store.put(sample_row("a", 1));
  ASSERT_EQ(store.rows().size(), 2u);
  EXPECT_EQ(
      store.find("H200 GPU-1", "fwd bf16 b1 hq8 hk8 sq1024 sk1024 d64", "cuda", "a")->point.time_s,
      1);
  EXPECT_FALSE(store.find("H200 GPU-1", "fwd bf16 b1 hq8 hk8 sq1024 sk1024 d64", "cpu", "a"));
}

TEST(Store, AClockMakesARowOfItsOwn) {
  const TempDir folder;
  Store store(folder / "p.db");
  Row own = sample_row("a", 1), locked = sample_row("a", 2), lower = sample_row("a", 3);
  locked.point.clock_hz = 1500e6;
  lower.point.clock_hz = 1200e6;
  store.put_all({own, locked, lower});
  locked.point.time_s = 2.5;
  store.put(locked);
  own.point.time_s = 1.5;
  store.put(own);
  EXPECT_EQ(text(store.rows()), text({own, lower, locked}));
  const auto time_at = [&](std::optional<double> clock_hz) {
    const auto row = store.find(own.machine.card, own.problem, "cuda", "a", clock_hz);
    return row ? row->point.time_s : 0;
  };
  EXPECT_EQ(time_at({}), 1.5);
  EXPECT_EQ(time_at(1500e6), 2.5);
  EXPECT_EQ(time_at(1201e6), 0);
}

// As the program before clocks wrote it.
void write_version_1(const std::filesystem::path& path) {
  sqlite3* file = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &file), SQLITE_OK);
  const char* sql = R"(
create table if not exists rows (
  card text not null, driver text not null, kernels text not null, problem text not null,
  backend text not null, config text not null, dtype integer not null, time_s real not null,
  power_w real, energy_j real, dynamic_w real, clock_share real not null, error real not null,
  stores_probabilities integer not null, memory_bytes integer not null, spread real not null,
  temp_c real, date text not null,
  primary key (card, problem, backend, config)) without rowid;
pragma user_version = 1;
insert into rows values ('H200 GPU-1', '580.1', '0.1.0', 'fwd bf16 b1 hq8 hk8 sq1024 sk1024 d64', 'cuda',
  'tile 128', 2, 1e-3, 650.25, 0.65, 730, 0.92, 1e-3, 1, 1048576, 0.01, null,
  '2026-01-31T12:00:00Z');
insert into rows values ('H200 GPU-1', '580.1', '0.1.0', 'fwd bf16 b1 hq8 hk8 sq1024 sk1024 d64', 'cuda',
  'tile 64', 2, 2e-3, null, null, null, 1, 1e-3, 0, 0, 0.01, 44, '2026-01-31T12:00:00Z');)";
  EXPECT_EQ(sqlite3_exec(file, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(file);
  sqlite3_close(file);
}

int version_of(const std::filesystem::path& path) {
  sqlite3* file = nullptr;
  EXPECT_EQ(sqlite3_open(path.c_str(), &file), SQLITE_OK);
  int version = -1;
  const auto read = [](void* to, int, char** values, char**) {
    *static_cast<int*>(to) = std::stoi(values[0]);
    return 0;
  };
  sqlite3_exec(file, "pragma user_version", read, &version, nullptr);
  sqlite3_close(file);
  return version;
}

TEST(Store, AFileOfTheFirstVersionIsReadAsItIsAndBroughtUpByWriters) {
  const TempDir folder;
  const auto path = folder / "old.db";
  write_version_1(path);
  Row first = sample_row("tile 128"), second = sample_row("tile 64", 2e-3);
  first.point.dtype = second.point.dtype = static_cast<DType>(2);
  second.point.power_w = second.point.energy_j = second.point.dynamic_w = std::nullopt;
  second.point.clock_share = 1;
  second.point.stores_probabilities = false;
  second.point.memory_bytes = 0;
  second.temp_c = 44;
  const Store reader(path, Access::existing);
  EXPECT_EQ(text(reader.rows()), text({first, second}));
  EXPECT_EQ(version_of(path), 1);  // who reads changes nothing
  EXPECT_FALSE(reader.find("H200 GPU-1", first.problem, "cuda", "tile 64", 1200e6));

  Row locked = first;
  locked.point.clock_hz = 1200e6;
  Store(path).put(locked);
  EXPECT_EQ(version_of(path), 2);
  EXPECT_EQ(text(Store(path).rows()), text({first, locked, second}));
  EXPECT_EQ(text(reader.rows()), text({first, locked, second}));  // who was reading meanwhile
}

TEST(Store, ManyWhoBringAFileUpLoseNothing) {
  const TempDir folder;
  const auto path = folder / "old.db";
  write_version_1(path);
  std::vector<std::thread> writers;
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back([&, i] { Store(path).put(sample_row("new " + std::to_string(i))); });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(Store(path).rows().size(), 6u);
}

TEST(Store, FindsByCardAndProblem) {
  const TempDir folder;
  Store store(folder / "p.db");
  store.put(sample_row("a"));
  Row other = sample_row("b");
  other.machine.card = "it's \"another\"; drop table rows";
  store.put(other);
  EXPECT_EQ(store.rows(other.machine.card).size(), 1u);
  EXPECT_EQ(store.rows("", "fwd bf16 b1 hq8 hk8 sq1024 sk1024 d64").size(), 2u);
  EXPECT_EQ(store.rows("", "x").size(), 0u);
}

TEST(Store, AllRowsOrNone) {
  const TempDir folder;
  Store store(folder / "p.db");
  Row bad = sample_row("bad");
  bad.point.time_s = std::numeric_limits<double>::quiet_NaN();  // null to SQLite, which refuses it
  EXPECT_THROW(store.put_all({sample_row("good"), bad}), IoError);
  EXPECT_TRUE(store.rows().empty());
  store.put_all({sample_row("good"), sample_row("better")});
  EXPECT_EQ(store.rows().size(), 2u);
}

TEST(Store, TwoWritersLoseNothing) {
  const TempDir folder;
  const auto path = folder / "p.db";
  { Store create(path); }
  const auto write = [&](const std::string& name) {
    Store store(path);
    for (int i = 0; i < 20; ++i) store.put(sample_row(name + std::to_string(i)));
  };
  std::thread a([&] { write("a"); }), b([&] { write("b"); });
  a.join();
  b.join();
  EXPECT_EQ(Store(path).rows().size(), 40u);
}

TEST(Store, BadFilesAreNamed) {
  const TempDir folder;
  std::ofstream(folder / "text.db")
      << "this is no database, and long enough to be looked at as one";
  for (const auto& path : {folder / "text.db", std::filesystem::path("/proc/none/p.db")}) {
    try {
      Store store(path);
      ADD_FAILURE() << path;
    } catch (const IoError& error) {
      EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
    }
  }
}

// Rows that no tuning wrote, and a file of which a part is gone.
TEST(Store, DamagedRowsAreNamedAndNotBelieved) {
  const TempDir folder;
  const auto reason = [&](auto spoil) -> std::string {
    const auto path = folder / "spoilt.db";
    std::filesystem::remove(path);
    Row row = sample_row();
    spoil(row);
    Store store(path);
    store.put(row);
    try {
      store.rows();
    } catch (const IoError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(reason([](Row&) {}), "");
  EXPECT_NE(reason([](Row& r) { r.problem = "nonsense"; }).find("spoilt.db: row of 'nonsense'"),
            std::string::npos);
  EXPECT_NE(reason([](Row& r) { r.point.time_s = 0; }).find("time_s"), std::string::npos);
  EXPECT_NE(reason([](Row& r) { r.point.dtype = static_cast<DType>(77); }).find("dtype"),
            std::string::npos);
  EXPECT_NE(reason([](Row& r) { r.point.energy_j = -1; }).find("energy_j"), std::string::npos);
  EXPECT_NE(reason([](Row& r) { r.point.memory_bytes = -1; }).find("memory"), std::string::npos);
  EXPECT_NE(reason([](Row& r) { r.point.clock_hz = -1; }).find("clock_hz"), std::string::npos);

  const auto cut = folder / "cut.db";
  {
    Store store(cut);
    for (int i = 0; i < 200; ++i) store.put(sample_row(std::to_string(i)));
  }
  std::filesystem::resize_file(cut, 8192);
  EXPECT_THROW(Store(cut).rows(), IoError);
}

TEST(Json, IsTheSameBothWays) {
  std::vector<Row> rows{sample_row("a"), sample_row("b")};
  rows[1].point.energy_j = rows[1].point.power_w = std::nullopt;
  EXPECT_EQ(text(from_json(text(rows))), text(rows));
}

// A file that a person wrote: rows are found by the canonical line.
TEST(Json, ShorthandsOfAProblemBecomeItsLine) {
  Row row = sample_row();
  row.problem = "fwd bf16 h8 s1024 d64 full";
  EXPECT_EQ(from_json(text({row})).at(0).problem, sample_row().problem);
}

std::string refusal(const std::string& text) {
  try {
    from_json(text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Json, AConfigurationThatNoPlanWouldTakeIsRefused) {
  Row row = sample_row("BackwardConfig{.block_q=64}");
  EXPECT_EQ(refusal(text({sample_row(), row})),
            "profile: row 2: config 'BackwardConfig{.block_q=64}' is of the other pass than '" +
                row.problem + "'");
  row.point.label = "Forwardconfig{.block_q=64}";
  EXPECT_EQ(refusal(text({row})).find("profile: row 1: config: 'Forwardconfig{.block_q=64}' is of"),
            0u);
  row.point.label = "ForwardConfig{.block_q=64}";
  EXPECT_EQ(refusal(text({row})), "");
}

TEST(Json, AKeyThatNobodyReadsIsNamed) {
  const std::string good = text({sample_row("a"), sample_row("b")});
  std::string bad = good;
  bad.replace(bad.rfind("\"time_s\""), 8, "\"clock_mhz\": 1200, \"time_s\"");
  EXPECT_EQ(
      refusal(bad).find("profile: row 2: unknown key 'clock_mhz'; accepted: card, driver, kernels"),
      0u)
      << refusal(bad);
  bad = good;
  bad.replace(bad.find("\"rows\""), 6, "\"row\": [], \"rows\"");
  EXPECT_EQ(refusal(bad), "profile: unknown key 'row'; accepted: schema, rows");
}

TEST(Json, AClockIsOfTheSecondSchemaAndWithoutOneFilesAreAsTheyWere) {
  std::vector<Row> rows{sample_row("a"), sample_row("a")};
  EXPECT_EQ(text(rows).find("clock_hz"), std::string::npos);
  EXPECT_NE(text(rows).find("dfa-profile/1"), std::string::npos);
  rows[1].point.clock_hz = 1200e6;
  EXPECT_NE(text(rows).find("dfa-profile/2"), std::string::npos);
  EXPECT_NE(text(rows).find("\"clock_hz\": null"), std::string::npos);
  const auto read = from_json(text(rows));
  EXPECT_FALSE(read[0].point.clock_hz);
  EXPECT_EQ(read[1].point.clock_hz, 1200e6);
  EXPECT_EQ(text(read), text(rows));
  std::string bad;
  for (const char* other : {"-1200000000.0", "1200.0", "1200000.0", "1e30"}) {  // MHz, kHz
    bad = text(rows);
    bad.replace(bad.find("1200000000.0"), 12, other);
    EXPECT_EQ(refusal(bad).substr(0, 24), "profile: row 2: clock_hz") << other;
  }
}

TEST(Json, BadRowsAreNamed) {
  const std::string good = text({sample_row()});
  for (const auto& [from, to] : {std::pair{"\"fp16\"", "\"fp12\""},
                                 {"\"time_s\"", "\"time\""},
                                 {"0.001", "-1"},
                                 {"fwd bf16", "fwd bf17"},
                                 {"650.25", "-650.25"},
                                 {"1048576", "1048576.5"},
                                 {"0.92", "92"},
                                 {"2026-01-31T12:00:00Z", "2026-02-30T12:00:00Z"},
                                 {"\"cuda\"", "\"\""},
                                 {"dfa-profile/1", "dfa-profile/9"},
                                 {"{", "["}}) {
    std::string bad = good;
    bad.replace(bad.find(from), std::string(from).size(), to);
    EXPECT_THROW(from_json(bad), InvalidArgument) << to;
  }
}

TEST(Json, ADateIsOneOfTheCalendarInUtc) {
  Row row = sample_row();
  for (const char* date : {"2024-02-29T23:59:59Z", "1999-12-31T00:00:60Z"}) {
    row.date = date;
    EXPECT_EQ(refusal(text({row})), "");
  }
  for (const char* date :
       {"", "yesterday", "2026-01-31", "2026-01-31T12:00:00", "2026-01-31 12:00:00Z",
        "2026-01-31T12:00:00+01:00", "2023-02-29T12:00:00Z", "2026-13-01T12:00:00Z",
        "2026-00-10T12:00:00Z", "2026-01-31T24:00:00Z", "2026-01-31T12:60:00Z",
        "2026-01-31T12:00:61Z", "2026-01-3xT12:00:00Z", "-026-01-31T12:00:00Z"}) {
    row.date = date;
    EXPECT_EQ(refusal(text({row})), std::string("profile: row 1: date '") + date +
                                        "' must be of UTC, as 2026-01-31T12:00:00Z");
  }
  row = sample_row();
  row.spread = -0.1;
  EXPECT_EQ(refusal(text({row})), "profile: row 1: spread must be 0 or more");
  row = sample_row();
  row.machine.card.clear();
  EXPECT_EQ(refusal(text({row})), "profile: row 1: card must be named");
}

// No row of the frontier is beaten, and every other is.
TEST(Frontier, HoldsWhatNothingBeats) {
  const Random random(5);
  std::uint64_t draw = 0;
  for (int round = 0; round < 50; ++round) {
    std::vector<Row> rows;
    for (int i = 0; i < 20; ++i) {
      Row row = sample_row(std::to_string(i), 1 + static_cast<double>(random.below(draw++, 6)));
      row.point.energy_j = 1 + static_cast<double>(random.below(draw++, 6));
      row.point.error = static_cast<double>(random.below(draw++, 3));
      rows.push_back(row);
    }
    const auto beats = [](const OperatingPoint& a, const OperatingPoint& b) {
      const bool as_good = a.time_s <= b.time_s && *a.energy_j <= *b.energy_j && a.error <= b.error;
      return as_good && (a.time_s < b.time_s || *a.energy_j < *b.energy_j || a.error < b.error);
    };
    const auto best = frontier(rows);
    ASSERT_FALSE(best.empty());
    for (const Row& row : rows) {
      const bool kept = std::any_of(best.begin(), best.end(), [&](const Row& other) {
        return other.point.label == row.point.label;
      });
      const bool beaten = std::any_of(rows.begin(), rows.end(), [&](const Row& other) {
        return beats(other.point, row.point);
      });
      EXPECT_NE(kept, beaten);
    }
    EXPECT_TRUE(std::is_sorted(best.begin(), best.end(), [](const Row& a, const Row& b) {
      return a.point.time_s < b.point.time_s;
    }));
  }
}

// Whatever clocks are lent, the best of what can be had is on the frontier.
TEST(Frontier, HoldsTheBestWhateverClocksAreLent) {
  const Random random(7);
  std::uint64_t draw = 0;
  const double clocks[] = {0, 1200e6, 1500e6, 1980e6};
  for (int round = 0; round < 50; ++round) {
    std::vector<Row> rows;
    for (int i = 0; i < 24; ++i) {
      Row row = sample_row(std::to_string(i), 1 + random.uniform(draw++));
      row.point.energy_j = 1 + random.uniform(draw++);
      row.point.error = static_cast<double>(random.below(draw++, 2));
      const double hz = clocks[random.below(draw++, 4)];
      if (hz > 0) row.point.clock_hz = hz;
      rows.push_back(row);
    }
    const auto best = frontier(rows);
    EXPECT_LT(best.size(), rows.size());
    for (unsigned lent = 0; lent < 8; ++lent) {
      const auto least = [&](const std::vector<Row>& all, auto cost) {
        double found = 1e9;
        for (const Row& row : all) {
          const auto which = std::ranges::find(clocks, row.point.clock_hz.value_or(0)) - clocks;
          if (which > 0 && (lent >> (which - 1) & 1) == 0) continue;
          found = std::min(found, cost(row.point));
        }
        return found;
      };
      const auto time = [](const OperatingPoint& p) { return p.time_s; };
      const auto energy = [](const OperatingPoint& p) { return *p.energy_j; };
      const auto product = [](const OperatingPoint& p) { return *p.energy_j * p.time_s; };
      EXPECT_EQ(least(best, time), least(rows, time));
      EXPECT_EQ(least(best, energy), least(rows, energy));
      EXPECT_EQ(least(best, product), least(rows, product));
    }
  }
}

TEST(Frontier, WorksWithoutJoules) {
  Row fast = sample_row("fast", 1), slow = sample_row("slow", 2);
  fast.point.energy_j = slow.point.energy_j = std::nullopt;
  const auto best = frontier({slow, fast});
  ASSERT_EQ(best.size(), 1u);
  EXPECT_EQ(best[0].point.label, "fast");
}

TEST(Stale, SaysWhatChanged) {
  const Row row = sample_row();
  EXPECT_EQ(stale_reason(row, row.machine), "");
  for (auto change : {&Machine::card, &Machine::driver, &Machine::kernels}) {
    Machine other = row.machine;
    other.*change = "other";
    EXPECT_NE(stale_reason(row, other).find(row.machine.*change), std::string::npos);
  }
}

TEST(Store, ReadingMakesNothing) {
  const TempDir folder;
  EXPECT_THROW(Store(folder / "none.db", Access::existing), IoError);
  EXPECT_THROW(Store(folder / "deep/none.db", Access::existing), IoError);
  EXPECT_THROW(Store("", Access::create), IoError);
  EXPECT_THROW(Store(folder.path(), Access::create), IoError);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  std::ofstream(folder / "empty.db").close();
  EXPECT_THROW(Store(folder / "empty.db", Access::existing), IoError);
  EXPECT_EQ(std::filesystem::file_size(folder / "empty.db"), 0u);
  { const Store made(folder / "made.db"); }
  EXPECT_TRUE(Store(folder / "made.db", Access::existing).rows().empty());
}

}  // namespace
}  // namespace dfa::profile
