#include "cuda/entry_file.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>

#include "base/digest.h"
#include "base/json.h"

namespace dfa::cuda {
namespace {

constexpr std::string_view kMagic = "dfa-kernel/2 ";
constexpr std::size_t kDigestLength = 32;
constexpr std::size_t kFormerLength = 64;  // of dfa-kernel/1, which is listed and cleared

Json description_of(const CacheFile& file) {
  return {{"digest", file.digest},
          {"compiler", file.compiler},
          {"source", file.request.source},
          {"name_expression", file.request.name_expression},
          {"arch", file.request.arch},
          {"preamble", file.request.preamble},
          {"options", file.request.options},
          {"lowered_name", file.kernel.lowered_name},
          {"log", file.kernel.log},
          {"registers", file.kernel.registers},
          {"smem_bytes", file.kernel.smem_bytes},
          {"stack_bytes", file.kernel.stack_bytes},
          {"warning", file.kernel.warning}};
}

CacheFile described(std::string_view text) try {
  const Json json = Json::parse(text);
  CacheFile file;
  json.at("digest").get_to(file.digest);
  json.at("compiler").get_to(file.compiler);
  json.at("source").get_to(file.request.source);
  json.at("name_expression").get_to(file.request.name_expression);
  json.at("arch").get_to(file.request.arch);
  file.request.preamble = json.value("preamble", "");  // those of older versions have none
  json.at("options").get_to(file.request.options);
  json.at("lowered_name").get_to(file.kernel.lowered_name);
  json.at("log").get_to(file.kernel.log);
  json.at("registers").get_to(file.kernel.registers);
  json.at("smem_bytes").get_to(file.kernel.smem_bytes);
  json.at("stack_bytes").get_to(file.kernel.stack_bytes);
  json.at("warning").get_to(file.kernel.warning);
  return file;
} catch (const Json::exception& error) {
  throw IoError(std::string("not a compiled kernel of ours: ") + error.what());
}

}  // namespace

std::string encode(const CacheFile& file) {
  const std::string rest =
      description_of(file).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n" +
      file.kernel.cubin;
  return std::string(kMagic) + digest(rest) + "\n" + rest;
}

CacheFile decode(std::string_view bytes) {
  const std::size_t head = kMagic.size() + kDigestLength + 1;
  if (bytes.substr(0, kMagic.size()) != kMagic || bytes.size() < head) {
    throw IoError("not a compiled kernel of ours");
  }
  const std::string_view rest = bytes.substr(head);
  if (digest(rest) != bytes.substr(kMagic.size(), kDigestLength)) {
    throw IoError("damaged: its bytes are not those that were written");
  }
  const std::size_t end = rest.find('\n');
  CacheFile file = described(rest.substr(0, end));
  file.kernel.cubin = rest.substr(end + 1);
  return file;
}

CacheFile read_description(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::string head, text;
  if (!std::getline(stream, head) || !std::getline(stream, text)) {
    throw IoError("'" + path.string() + "' cannot be read");
  }
  if (!head.starts_with(kMagic)) throw IoError("not a compiled kernel of ours");
  return described(text);
}

int cuda_major(const std::string& compiler) {
  const std::string word = "nvrtc";
  const std::size_t at = compiler.find(word);
  if (at == std::string::npos || compiler.size() < at + word.size() + 2) return 0;
  return std::atoi(compiler.c_str() + at + word.size() + 1);
}

std::filesystem::path path_of(const std::filesystem::path& folder, const std::string& digest,
                              const std::string& compiler) {
  std::string word = compiler;
  std::replace_if(
      word.begin(), word.end(), [](unsigned char c) { return std::isalnum(c) == 0 && c != '.'; },
      '-');
  return folder / "kernels" / (digest + "." + word + ".kernel");
}

bool is_cache_name(const std::string& name) {
  const std::size_t length = name.find('.');
  return (length == kDigestLength || length == kFormerLength) &&
         name.find_first_not_of("0123456789abcdef") == length &&
         name.find(".kernel") != std::string::npos;
}

}  // namespace dfa::cuda
