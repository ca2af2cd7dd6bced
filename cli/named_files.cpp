#include "cli/named_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "dfa/error.h"

namespace dfa::cli {
namespace {

namespace fs = std::filesystem;

bool are_one(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return false;
  std::error_code ignored;
  if (fs::exists(a, ignored) && fs::exists(b, ignored)) {
    return fs::is_regular_file(a, ignored) && fs::equivalent(a, b, ignored);
  }
  return fs::weakly_canonical(fs::absolute(a), ignored) ==
         fs::weakly_canonical(fs::absolute(b), ignored);
}

}  // namespace

void require_apart(std::initializer_list<NamedFile> written,
                   std::initializer_list<NamedFile> read) {
  for (const NamedFile* one = written.begin(); one != written.end(); ++one) {
    const auto refuse = [one](const NamedFile& other) {
      if (!are_one(one->path, other.path)) return;
      throw InvalidArgument(
          fmt::format("{} '{}' is the file of {}, which would be lost; accepted: "
                      "a file of its own",
                      one->option, one->path, other.option));
    };
    for (const NamedFile& other : read) refuse(other);
    for (const NamedFile* other = written.begin(); other != one; ++other) refuse(*other);
  }
}

}  // namespace dfa::cli
