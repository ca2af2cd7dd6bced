#include "bench/result_writer.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <system_error>

#include "base/file.h"
#include "base/random.h"
#include "dfa/error.h"

namespace dfa::bench {
namespace {

static_assert(std::endian::native == std::endian::little, "samples are written as they stand");

const std::vector<std::string> kColumns{"start_s", "duration_s", "clock_mhz", "temp_c"};

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

void append(std::string& bytes, double value) {
  const auto narrow = static_cast<float>(value);
  char raw[sizeof narrow];
  std::memcpy(raw, &narrow, sizeof narrow);
  bytes.append(raw, sizeof narrow);
}

std::string pack(Result& result, const std::vector<std::vector<Sample>>& samples) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  std::string bytes;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].empty()) continue;
    result.cases[i].samples = SampleRows{bytes.size(), samples[i].size(), kColumns};
    for (const Sample& sample : samples[i]) {
      append(bytes, sample.start_s);
      append(bytes, sample.duration_s);
      append(bytes, sample.clock_hz ? *sample.clock_hz * 1e-6 : kNan);
      append(bytes, sample.temp_c.value_or(kNan));
    }
  }
  return bytes;
}

std::string digest(const std::string& bytes) {
  std::uint64_t hash = bytes.size();
  for (const char byte : bytes) hash = mix64(hash ^ static_cast<unsigned char>(byte));
  return fmt::format("{:08x}", hash >> 32);
}

// The sidecar a result at `path` points to; empty when there is none of ours.
std::filesystem::path samples_beside(const std::filesystem::path& path) {
  try {
    for (const CaseResult& record : read_result(path).cases) {
      const std::string name = record.samples_file.value_or("");
      if (name.starts_with(path.stem().string() + ".samples-")) return folder_of(path) / name;
    }
  } catch (const Error&) {
    // No result there, or not one of ours: nothing to tidy up.
  }
  return {};
}

}  // namespace

static void write_to_stream(const std::filesystem::path& path, Result& result,
                            const std::vector<std::vector<Sample>>& samples) {
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].empty()) continue;
    result.cases[i].not_measured["samples_file"] =
        "no file can stand beside '" + path.string() + "'";
  }
  write_file_atomic(path, to_json(result));
}

void write_result(const std::filesystem::path& named, Result& result,
                  const std::vector<std::vector<Sample>>& samples) {
  if (is_stream(named)) return write_to_stream(named, result, samples);
  const std::filesystem::path path = output_target(named);
  const std::filesystem::path older = samples_beside(path);
  const std::string bytes = pack(result, samples);
  const std::string name = path.stem().string() + ".samples-" + digest(bytes) + ".f32";
  const std::filesystem::path sidecar = folder_of(path) / name;
  if (!bytes.empty()) {
    for (CaseResult& record : result.cases) {
      if (record.samples) record.samples_file = name;
    }
    write_file_atomic(sidecar, bytes);
  }
  std::error_code ignored;
  try {
    write_file_atomic(path, to_json(result));
  } catch (const IoError&) {
    if (sidecar != older) std::filesystem::remove(sidecar, ignored);
    throw;
  }
  if (!older.empty() && older != sidecar) std::filesystem::remove(older, ignored);
}

void remove_result(const std::filesystem::path& path) {
  if (is_stream(path)) return;
  const std::filesystem::path samples = samples_beside(path);
  std::error_code ignored;
  if (!samples.empty()) std::filesystem::remove(samples, ignored);
  std::filesystem::remove(path, ignored);
}

std::vector<std::vector<float>> read_samples(const std::filesystem::path& result_path,
                                             const CaseResult& record) {
  if (!record.samples || !record.samples_file) return {};
  const std::string bytes = read_file(folder_of(output_target(result_path)) / *record.samples_file);
  const std::size_t columns = record.samples->columns.size();
  const std::size_t size = record.samples->rows * columns * sizeof(float);
  if (record.samples->offset_bytes > bytes.size() ||
      size > bytes.size() - record.samples->offset_bytes) {
    throw InvalidArgument("samples '" + *record.samples_file + "': " +
                          std::to_string(bytes.size()) + " bytes, the result names rows beyond");
  }
  std::vector<std::vector<float>> rows(record.samples->rows, std::vector<float>(columns));
  const char* from = bytes.data() + record.samples->offset_bytes;
  for (auto& row : rows) {
    std::memcpy(row.data(), from, columns * sizeof(float));
    from += columns * sizeof(float);
  }
  return rows;
}

}  // namespace dfa::bench
