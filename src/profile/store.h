#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "profile/row.h"

namespace dfa::profile {

enum class Access : int { create, existing };

// Measurements in an SQLite file. Each put() is complete on disk when it returns, so a tuning that
// is interrupted loses at most the row it was measuring. Several processes may use one file.
class Store {
 public:
  // With Access::create, makes the file and its folder where they are not there; who only reads
  // makes nothing, and reads a file of an older version as it is; who writes brings it to this
  // one. Throws IoError that names the file: not there, not writable, not ours, of a newer version.
  explicit Store(const std::filesystem::path& path, Access access = Access::create);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Replaces what is there of the same card, problem, backend, configuration and clock.
  void put(const Row& row);
  void put_all(const std::vector<Row>& rows);  // all or none

  // Rows of a card and problem; empty texts stand for any.
  std::vector<Row> rows(const std::string& card = {}, const std::string& problem = {}) const;
  std::optional<Row> find(const std::string& card, const std::string& problem,
                          const std::string& backend, const std::string& config,
                          std::optional<double> clock_hz = {}) const;

 private:
  struct Database;
  std::unique_ptr<Database> database_;
};

}  // namespace dfa::profile
