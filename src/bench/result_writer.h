#pragma once

#include <filesystem>
#include <vector>

#include "bench/result.h"
#include "bench/runner.h"

namespace dfa::bench {

// Throws IoError when the folder of `path` is not there or cannot be written to: before hours of
// measuring, not after.
void require_writable(const std::filesystem::path& path);

// Writes the samples beside the result as `<stem>.samples-<digest>.f32` (the name changes with the
// content, so an older result keeps its own samples until it is replaced), then the result, each at
// once or not at all. Sets samples_file and samples of the cases. Throws IoError and leaves an
// older result as it was.
void write_result(const std::filesystem::path& path, Result& result,
                  const std::vector<std::vector<Sample>>& samples);

// Both files of a result, where they are there.
void remove_result(const std::filesystem::path& path);

// Samples of a case, as rows of its columns; NaN where not measured. Throws InvalidArgument when
// the sidecar is shorter than the case says.
std::vector<std::vector<float>> read_samples(const std::filesystem::path& result_path,
                                             const CaseResult& record);

}  // namespace dfa::bench
