#include "cuda/sources.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include "base/env.h"
#include "base/file.h"
#include "dfa/error.h"

namespace dfa::cuda {

namespace fs = std::filesystem;

ReplacedSources::ReplacedSources(std::span<const SourceFile> sources, const fs::path& folder)
    : files_(sources.begin(), sources.end()) {
  for (SourceFile& file : files_) {
    const fs::path path = folder / file.name;
    if (!fs::exists(path)) continue;
    file.text = texts_.emplace_back(read_file(path));
  }
  if (!texts_.empty()) return;
  throw InvalidArgument("DFA_KERNEL_SOURCES: '" + folder.string() +
                        "' holds no file of the kernels; expected a folder with one or more, e.g. "
                        "kernels/forward/sm90_forward.cuh");
}

namespace {

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Where a comment or a text that begins at `at` ends; `at` where there is none.
std::size_t end_of_comment(std::string_view text, std::size_t at) {
  const std::string_view two = text.substr(at, 2);
  if (two != "//" && two != "/*") return at;
  const std::string_view end = two == "//" ? "\n" : "*/";
  const std::size_t found = text.find(end, at + 2);
  if (found == std::string_view::npos) return text.size();
  return two == "//" ? found : found + 2;
}
std::size_t end_of_quoted(std::string_view text, std::size_t at) {
  if (text[at] != '"') return at;
  std::size_t end = at + 1;
  while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
  return std::min(end + 1, text.size());
}

// Names in quotes behind #include.
std::vector<std::string_view> included(std::string_view text) {
  constexpr std::string_view kWord = "#include \"";
  std::vector<std::string_view> names;
  for (std::size_t at = text.find(kWord); at != text.npos; at = text.find(kWord, at)) {
    at += kWord.size();
    names.push_back(text.substr(at, text.find('"', at) - at));
  }
  return names;
}

}  // namespace

std::string code_of(std::string_view text) {
  std::string code;
  bool apart = false, directive = false;
  for (std::size_t at = 0; at < text.size();) {
    if (const std::size_t end = end_of_comment(text, at); end > at) {
      apart = true;
      at = end;
    } else if (std::isspace(static_cast<unsigned char>(text[at])) != 0) {
      if (text[at] == '\n' && directive) code += '\n', directive = false;
      apart = true;
      ++at;
    } else {
      directive |= text[at] == '#';
      if (apart && !code.empty() && is_name(code.back()) && is_name(text[at])) code += ' ';
      apart = false;
      const std::size_t quoted = std::max(end_of_quoted(text, at), at + 1);
      code += text.substr(at, quoted - at);
      at = quoted;
    }
  }
  return code;
}

std::span<const SourceFile> kernel_sources() {
  const std::string folder = env("DFA_KERNEL_SOURCES");
  if (folder.empty()) return embedded_sources();
  static const ReplacedSources replaced(embedded_sources(), folder);
  return replaced.files();
}

namespace {

// Of `open`, and all that they include.
std::vector<SourceFile> with_included(std::vector<std::string_view> open,
                                      std::span<const SourceFile> all) {
  std::set<std::string_view> used;
  while (!open.empty()) {
    const std::string_view name = open.back();
    open.pop_back();
    if (!used.insert(name).second) continue;
    const auto file =
        std::find_if(all.begin(), all.end(), [&](const auto& f) { return f.name == name; });
    if (file == all.end()) continue;  // of the compiler
    for (const std::string_view other : included(file->text)) open.push_back(other);
  }
  std::vector<SourceFile> sources;
  for (const SourceFile& file : all) {
    if (used.contains(file.name)) sources.push_back(file);
  }
  return sources;
}

}  // namespace

std::vector<SourceFile> sources_of(Pass pass) {
  std::vector<std::string_view> names;
  for (const SourceFile& file : kernel_sources()) {
    const bool forward = file.name.starts_with("kernels/forward/");
    const bool backward = file.name.starts_with("kernels/backward/");
    if ((forward && pass != Pass::backward) || (backward && pass != Pass::forward)) {
      names.push_back(file.name);
    }
  }
  return with_included(std::move(names), kernel_sources());
}

std::vector<SourceFile> sources_of(std::string_view name, std::span<const SourceFile> all) {
  return with_included({name}, all);
}

}  // namespace dfa::cuda
