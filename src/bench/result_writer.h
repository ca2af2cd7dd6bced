#pragma once

#include <filesystem>
#include <vector>

#include "base/file.h"
#include "bench/result.h"
#include "bench/runner.h"

namespace dfa::bench {

using dfa::require_writable;

// Writes the samples beside the result (where `path` is a link: beside what it points to) as
// `<stem>.samples-<digest>.f32` (the name changes with the content, so an older result keeps its
// own samples until it is replaced), then the result, each at once or not at all. Sets samples_file
// and samples of the cases. Beside a device, a pipe or a descriptor there is no place for samples:
// not_measured then says so. Throws IoError and leaves an older result as it was.
void write_result(const std::filesystem::path& path, Result& result,
                  const std::vector<std::vector<Sample>>& samples);

// Both files of a result, where they are there.
void remove_result(const std::filesystem::path& path);

// Samples of a case, as rows of its columns; NaN where not measured. Throws InvalidArgument when
// the sidecar is shorter than the case says.
std::vector<std::vector<float>> read_samples(const std::filesystem::path& result_path,
                                             const CaseResult& record);

}  // namespace dfa::bench
