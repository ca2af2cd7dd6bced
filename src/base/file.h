#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace dfa {

// Whole file as bytes. Throws IoError naming the path and the system's reason.
std::string read_file(const std::filesystem::path& path);

// Writes beside the target, syncs, renames: readers see the old file or the new one, never a part.
// Throws IoError (disk full, no permission, folder missing) and leaves the old file as it was.
void write_file_atomic(const std::filesystem::path& path, std::string_view bytes);

}  // namespace dfa
