#include "profile/store.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <cstdint>

#include "dfa/error.h"
#include "profile/check.h"

namespace dfa::profile {
namespace {

constexpr int kVersion = 2;
constexpr int kWithoutClocks = 1;
constexpr int kBusyMs = 5000;

// A clock of null, the card's own, is one among those of a configuration: primary keys take no
// null.
constexpr const char* kSchema = R"(
create table rows (
  card text not null, driver text not null, kernels text not null, problem text not null,
  backend text not null, config text not null, dtype integer not null, time_s real not null,
  power_w real, energy_j real, dynamic_w real, clock_share real not null, error real not null,
  stores_probabilities integer not null, memory_bytes integer not null, spread real not null,
  temp_c real, date text not null, clock_hz real);
create unique index one_row on rows (card, problem, backend, config, ifnull(clock_hz, 0)))";

// All but the clock, which files of the first version lack.
constexpr const char* kColumns =
    "card, driver, kernels, problem, backend, config, dtype, time_s, power_w, energy_j, dynamic_w, "
    "clock_share, error, stores_probabilities, memory_bytes, spread, temp_c, date";

struct Closer {
  void operator()(sqlite3* handle) const { sqlite3_close(handle); }
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};

}  // namespace

struct Store::Database {
  std::filesystem::path path;
  std::unique_ptr<sqlite3, Closer> handle;

  [[noreturn]] void fail(const std::string& what) const {
    throw IoError(fmt::format("profile {}: {}: {}", path.string(), what,
                              handle ? sqlite3_errmsg(handle.get()) : "out of memory"));
  }
  void run(const char* sql) const {
    if (sqlite3_exec(handle.get(), sql, nullptr, nullptr, nullptr) != SQLITE_OK) fail(sql);
  }
  int version() const;
  // Another process may bring the file to this version meanwhile.
  const char* clock() const { return version() == kWithoutClocks ? "null" : "clock_hz"; }
  void bring_up_to_date() const;
};

namespace {

// A prepared statement; parameters and columns count up by themselves.
class Statement {
 public:
  template <typename Database>
  Statement(const Database& database, const std::string& sql) {
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_prepare_v2(database.handle.get(), sql.c_str(), -1, &statement, nullptr) !=
        SQLITE_OK) {
      database.fail("cannot be used");
    }
    statement_.reset(statement);
  }

  Statement& bind(const std::string& text) {
    sqlite3_bind_text(statement_.get(), ++bound_, text.c_str(), -1, SQLITE_TRANSIENT);
    return *this;
  }
  Statement& bind(double value) {
    sqlite3_bind_double(statement_.get(), ++bound_, value);
    return *this;
  }
  Statement& bind(std::int64_t value) {
    sqlite3_bind_int64(statement_.get(), ++bound_, value);
    return *this;
  }
  Statement& bind(const std::optional<double>& value) {
    if (value) return bind(*value);
    sqlite3_bind_null(statement_.get(), ++bound_);
    return *this;
  }

  // Does a row follow?
  template <typename Database>
  bool step(const Database& database) {
    column_ = 0;
    const int status = sqlite3_step(statement_.get());
    if (status != SQLITE_ROW && status != SQLITE_DONE) database.fail("failed");
    return status == SQLITE_ROW;
  }

  std::string text() {
    const auto* bytes = sqlite3_column_text(statement_.get(), column_++);
    return bytes != nullptr ? reinterpret_cast<const char*>(bytes) : "";
  }
  double real() { return sqlite3_column_double(statement_.get(), column_++); }
  std::int64_t integer() { return sqlite3_column_int64(statement_.get(), column_++); }
  std::optional<double> maybe_real() {
    const bool null = sqlite3_column_type(statement_.get(), column_) == SQLITE_NULL;
    const double value = real();
    return null ? std::nullopt : std::optional(value);
  }

 private:
  std::unique_ptr<sqlite3_stmt, Closer> statement_;
  int bound_ = 0, column_ = 0;
};

template <typename Database>
Row read_row(Statement& s, const Database& database) {
  Row row;
  row.machine.card = s.text();
  row.machine.driver = s.text();
  row.machine.kernels = s.text();
  row.problem = s.text();
  row.backend = s.text();
  row.point.label = s.text();
  row.point.dtype = static_cast<DType>(s.integer());
  row.point.time_s = s.real();
  row.point.power_w = s.maybe_real();
  row.point.energy_j = s.maybe_real();
  row.point.dynamic_w = s.maybe_real();
  row.point.clock_share = s.real();
  row.point.error = s.real();
  row.point.stores_probabilities = s.integer() != 0;
  row.point.memory_bytes = s.integer();
  row.spread = s.real();
  row.temp_c = s.maybe_real();
  row.date = s.text();
  row.point.clock_hz = s.maybe_real();
  if (const Verdict ok = check(row); !ok) {
    throw IoError(fmt::format("profile {}: row of '{}', '{}': {}", database.path.string(),
                              row.problem, row.point.label, ok.reason));
  }
  return row;
}

void bind_row(Statement& s, const Row& row) {
  const OperatingPoint& p = row.point;
  s.bind(row.machine.card).bind(row.machine.driver).bind(row.machine.kernels).bind(row.problem);
  s.bind(row.backend).bind(p.label).bind(static_cast<std::int64_t>(p.dtype)).bind(p.time_s);
  s.bind(p.power_w).bind(p.energy_j).bind(p.dynamic_w).bind(p.clock_share).bind(p.error);
  s.bind(static_cast<std::int64_t>(p.stores_probabilities)).bind(p.memory_bytes).bind(row.spread);
  s.bind(row.temp_c).bind(row.date).bind(p.clock_hz);
}

}  // namespace

int Store::Database::version() const {
  Statement statement(*this, "pragma user_version");
  statement.step(*this);
  return static_cast<int>(statement.integer());
}

// All or nothing, and once, whoever else opens the file.
void Store::Database::bring_up_to_date() const {
  run("begin immediate");
  try {
    const int from = version();
    if (from == kWithoutClocks) run("alter table rows rename to older");
    if (from < kVersion) run(kSchema);
    if (from == kWithoutClocks) {
      run(fmt::format("insert into rows ({0}) select {0} from older", kColumns).c_str());
      run("drop table older");
    }
    if (from < kVersion) run(fmt::format("pragma user_version = {}", kVersion).c_str());
  } catch (...) {
    sqlite3_exec(handle.get(), "rollback", nullptr, nullptr, nullptr);
    throw;
  }
  run("commit");
}

// A file, or nothing yet where it may be made: SQLite itself takes an empty name and ":memory:" for
// a store that is gone at the end.
static void require_place(const std::filesystem::path& path, Access access) {
  std::error_code ignored;  // opening says what is wrong
  const auto status = std::filesystem::status(path, ignored);
  const bool there = std::filesystem::exists(status);
  if (path.empty() || (!there && access == Access::existing)) {
    throw IoError(fmt::format("profile '{}' is not there; accepted: a file that dfa tune made",
                              path.string()));
  }
  if (there && !std::filesystem::is_regular_file(status)) {
    throw IoError(
        fmt::format("profile '{}' is no file; accepted: a file that dfa tune made", path.string()));
  }
  if (!there && path.has_parent_path()) {
    std::filesystem::create_directories(path.parent_path(), ignored);
  }
}

Store::Store(const std::filesystem::path& path, Access access)
    : database_(std::make_unique<Database>()) {
  database_->path = path;
  require_place(path, access);
  sqlite3* handle = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | (access == Access::create ? SQLITE_OPEN_CREATE : 0);
  const int status =
      sqlite3_open_v2(std::filesystem::absolute(path).c_str(), &handle, flags, nullptr);
  database_->handle.reset(handle);
  if (status != SQLITE_OK) database_->fail("cannot be opened");
  sqlite3_busy_timeout(handle, kBusyMs);
  const int version = database_->version();
  if (version > kVersion) {
    throw IoError(fmt::format("profile {}: of version {}, this program reads {}", path.string(),
                              version, kVersion));
  }
  if (version == 0 && access == Access::existing) {
    throw IoError(fmt::format("profile '{}' holds no profile; accepted: a file that dfa tune made",
                              path.string()));
  }
  if (version < kVersion && access == Access::create) database_->bring_up_to_date();
}

Store::~Store() = default;

void Store::put(const Row& row) {
  Statement statement(*database_, fmt::format("insert or replace into rows ({}, clock_hz) values "
                                              "(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                                              kColumns));
  bind_row(statement, row);
  statement.step(*database_);
}

void Store::put_all(const std::vector<Row>& rows) {
  database_->run("begin immediate");
  try {
    for (const Row& row : rows) put(row);
  } catch (...) {
    sqlite3_exec(database_->handle.get(), "rollback", nullptr, nullptr, nullptr);
    throw;
  }
  database_->run("commit");
}

std::vector<Row> Store::rows(const std::string& card, const std::string& problem) const {
  Statement statement(*database_,
                      fmt::format("select {0}, {1} from rows where (?1 = '' or card = ?1) and "
                                  "(?2 = '' or problem = ?2) order by card, problem, "
                                  "backend, config, {1}",
                                  kColumns, database_->clock()));
  statement.bind(card).bind(problem);
  std::vector<Row> found;
  while (statement.step(*database_)) found.push_back(read_row(statement, *database_));
  return found;
}

std::optional<Row> Store::find(const std::string& card, const std::string& problem,
                               const std::string& backend, const std::string& config,
                               std::optional<double> clock_hz) const {
  Statement statement(*database_,
                      fmt::format("select {0}, {1} from rows where card = ? and problem = ? and "
                                  "backend = ? and config = ? and {1} is ?",
                                  kColumns, database_->clock()));
  statement.bind(card).bind(problem).bind(backend).bind(config).bind(clock_hz);
  if (!statement.step(*database_)) return std::nullopt;
  return read_row(statement, *database_);
}

}  // namespace dfa::profile
