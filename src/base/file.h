#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace dfa {

// Whole file as bytes. Throws IoError naming the path and the system's reason, or the size where
// the file has more than `most` bytes.
std::string read_file(const std::filesystem::path& path, std::uint64_t most = UINT64_MAX);

// Text that people or programs wrote: no more than a device without an end would fill.
inline constexpr std::uint64_t kMostText = std::uint64_t{1} << 28U;

// Puts the bytes where the path leads.
// - A regular file, or none yet: the text is written beside it, synced and renamed, so that readers
//   see the old file or the new one, never a part. Mode and owner of the old file are kept; a new
//   file has the mode that the umask leaves of 0666.
// - A symbolic link: it stays, and what it points to is written, be it there or not.
// - A device, a pipe or a descriptor (/dev/null, a FIFO, /dev/stdout, /dev/fd/3): opened and
//   written to, never replaced; of a descriptor at the place where it stands.
// - A file with several names (hard links), of an owner that we cannot give it, or in a folder
//   where nothing can be renamed (read-only, a mount of this one file): written in place, after the
//   space was reserved. Only there can a reader see a part.
// Throws IoError (disk full, no permission, folder missing, links in a circle) and leaves the old
// file as it was.
void write_file_atomic(const std::filesystem::path& path, std::string_view bytes);

// Throws IoError where write_file_atomic() could not begin: before hours of measuring, not after.
void require_writable(const std::filesystem::path& path);

// The file that is written for this path: itself, or where its links end.
std::filesystem::path output_target(const std::filesystem::path& path);

// Does the path lead to a device, a pipe or a descriptor, beside which no other file belongs?
bool is_stream(const std::filesystem::path& path);

}  // namespace dfa
