#include "cuda/cache.h"

#include <algorithm>
#include <tuple>

#include "base/env.h"
#include "base/file.h"
#include "cuda/entry_file.h"

namespace dfa::cuda {
namespace {

namespace fs = std::filesystem;

// Cache files, locks and leftovers; empty when there is no folder yet.
std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  const fs::file_type type = fs::status(folder, error).type();
  if (type != fs::file_type::not_found && type != fs::file_type::directory) {
    throw IoError("the cache '" + folder.string() + "' is no folder" +
                  (error ? " that can be read: " + error.message() : "") +
                  "; accepted: DFA_CACHE_DIR of a folder, or of one that is to be made");
  }
  for (const auto& entry : fs::directory_iterator(folder / "kernels", error)) {
    if (is_cache_name(entry.path().filename().string())) paths.push_back(entry.path());
  }
  return paths;
}

bool is_whole(const fs::path& path) { return path.extension() == ".kernel"; }

CacheEntry describe(const fs::path& path) {
  CacheEntry entry;
  entry.digest = path.stem().string().substr(0, path.stem().string().find('.'));
  try {
    const std::string bytes = read_file(path);
    entry.bytes = bytes.size();
    const CacheFile file = decode(bytes);
    entry.name_expression = file.request.name_expression;
    entry.arch = file.request.arch;
    entry.compiler = file.compiler;
  } catch (const IoError& error) {
    entry.intact = Verdict::no(error.what());
  }
  return entry;
}

}  // namespace

fs::path cache_folder() {
  if (const std::string folder = env("DFA_CACHE_DIR"); !folder.empty()) return folder;
  if (const std::string caches = env("XDG_CACHE_HOME"); !caches.empty()) {
    return fs::path(caches) / "dfa";
  }
  const std::string home = env("HOME");
  return home.empty() ? fs::path() : fs::path(home) / ".cache" / "dfa";
}

std::vector<CacheEntry> list_cache(const fs::path& folder) {
  std::vector<CacheEntry> entries;
  for (const fs::path& path : files_in(folder)) {
    if (is_whole(path)) entries.push_back(describe(path));
  }
  std::sort(entries.begin(), entries.end(), [](const CacheEntry& a, const CacheEntry& b) {
    return std::tie(a.name_expression, a.arch, a.compiler, a.digest) <
           std::tie(b.name_expression, b.arch, b.compiler, b.digest);
  });
  return entries;
}

int clear_cache(const fs::path& folder) {
  int removed = 0;
  for (const fs::path& path : files_in(folder)) {
    std::error_code error;
    const bool there = fs::remove(path, error);
    if (error) throw IoError("cannot remove '" + path.string() + "': " + error.message());
    if (there && is_whole(path)) ++removed;
  }
  return removed;
}

}  // namespace dfa::cuda
