#include "cuda/nvrtc.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>

#include "base/env.h"
#include "base/shared_library.h"
#include "cuda/ptxas_log.h"

namespace dfa::cuda {
namespace {

namespace fs = std::filesystem;

// Our own declarations of what we call of nvrtc.h: the header is not needed to build.
using Result = int;
using Program = void*;
constexpr Result kSuccess = 0;

constexpr const char* kNames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};

void add_names_in(const fs::path& folder, std::vector<std::string>& names) {
  for (const char* name : kNames) names.push_back((folder / name).string());
}

std::vector<fs::path> folders_in(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder, error)) found.push_back(entry.path());
  std::sort(found.begin(), found.end(), std::greater<>());  // cu13 before cuda_nvrtc
  return found;
}

std::vector<std::string> default_names() {
  std::vector<std::string> names;
  const fs::path forced = env("DFA_NVRTC");
  std::error_code error;
  if (fs::is_directory(forced, error)) add_names_in(forced, names);
  if (!forced.empty() && names.empty()) names.push_back(forced.string());
  if (!names.empty()) return names;
  add_names_in("", names);
  add_names_in(fs::path(env("CUDA_HOME")) / "lib64", names);
  const fs::path environment = env("VIRTUAL_ENV");
  if (environment.empty()) return names;
  for (const fs::path& python : folders_in(environment / "lib")) {
    for (const fs::path& package : folders_in(python / "site-packages" / "nvidia")) {
      if (fs::is_directory(package / "lib", error)) add_names_in(package / "lib", names);
    }
  }
  return names;
}

// "--gpu-architecture=sm_90a" needs 90 among the compiler's architectures.
int number_of(const std::string& arch) {
  const std::string prefix = "sm_";
  if (arch.rfind(prefix, 0) != 0) return 0;
  int number = 0;
  for (std::size_t i = prefix.size();
       i < arch.size() && std::isdigit(static_cast<unsigned char>(arch[i])) != 0; ++i) {
    number = std::min(10 * number + (arch[i] - '0'), 100000);
  }
  return number;
}

std::string first_error(const std::string& log) {
  const std::size_t at = log.find("error");
  if (at == std::string::npos) return log.substr(0, log.find('\n'));
  const std::size_t begin = log.rfind('\n', at);
  const std::size_t from = begin == std::string::npos ? 0 : begin + 1;
  return log.substr(from, log.find('\n', at) - from);
}

}  // namespace

struct Nvrtc::Functions {
  SharedLibrary library;
  Verdict status;
  std::string version;
  std::vector<int> architectures;

  Result (*nvrtcVersion)(int*, int*) = nullptr;
  const char* (*nvrtcGetErrorString)(Result) = nullptr;
  Result (*nvrtcGetNumSupportedArchs)(int*) = nullptr;
  Result (*nvrtcGetSupportedArchs)(int*) = nullptr;
  Result (*nvrtcCreateProgram)(Program*, const char*, const char*, int, const char* const*,
                               const char* const*) = nullptr;
  Result (*nvrtcDestroyProgram)(Program*) = nullptr;
  Result (*nvrtcAddNameExpression)(Program, const char*) = nullptr;
  Result (*nvrtcCompileProgram)(Program, int, const char* const*) = nullptr;
  Result (*nvrtcGetProgramLogSize)(Program, std::size_t*) = nullptr;
  Result (*nvrtcGetProgramLog)(Program, char*) = nullptr;
  Result (*nvrtcGetLoweredName)(Program, const char*, const char**) = nullptr;
  Result (*nvrtcGetCUBINSize)(Program, std::size_t*) = nullptr;
  Result (*nvrtcGetCUBIN)(Program, char*) = nullptr;

  explicit Functions(const std::vector<std::string>& names)
      : library(SharedLibrary::open_first(names)) {
    status = resolve();
    if (status) status = read_version();
  }

  void check(Result result, const char* call) const {
    if (result == kSuccess) return;
    throw Error(std::string("nvrtc: ") + call + ": " + nvrtcGetErrorString(result));
  }

 private:
  Verdict resolve() {
    if (!library.is_open()) {
      return Verdict::no("no CUDA run-time compiler (NVRTC): " + library.reason() +
                         "; DFA_NVRTC may name the library, PyPI nvidia-cuda-nvrtc has it");
    }
    std::string missing;
    const auto find = [&](const char* name, auto& function) {
      void* const address = library.symbol(name);
      if (address == nullptr) missing = name;
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
    };
    find("nvrtcVersion", nvrtcVersion);
    find("nvrtcGetErrorString", nvrtcGetErrorString);
    find("nvrtcGetNumSupportedArchs", nvrtcGetNumSupportedArchs);
    find("nvrtcGetSupportedArchs", nvrtcGetSupportedArchs);
    find("nvrtcCreateProgram", nvrtcCreateProgram);
    find("nvrtcDestroyProgram", nvrtcDestroyProgram);
    find("nvrtcAddNameExpression", nvrtcAddNameExpression);
    find("nvrtcCompileProgram", nvrtcCompileProgram);
    find("nvrtcGetProgramLogSize", nvrtcGetProgramLogSize);
    find("nvrtcGetProgramLog", nvrtcGetProgramLog);
    find("nvrtcGetLoweredName", nvrtcGetLoweredName);
    find("nvrtcGetCUBINSize", nvrtcGetCUBINSize);
    find("nvrtcGetCUBIN", nvrtcGetCUBIN);
    return missing.empty() ? Verdict::yes()
                           : Verdict::no("'" + library.name() + "' lacks " + missing);
  }

  Verdict read_version() {
    int major = 0;
    int minor = 0;
    int count = 0;
    if (nvrtcVersion(&major, &minor) != kSuccess || nvrtcGetNumSupportedArchs(&count) != kSuccess) {
      return Verdict::no("'" + library.name() + "' does not tell its version");
    }
    version = "nvrtc " + std::to_string(major) + "." + std::to_string(minor);
    architectures.resize(static_cast<std::size_t>(count));
    nvrtcGetSupportedArchs(architectures.data());
    return Verdict::yes();
  }
};

namespace {

// One translation unit: an include of the kernel's file.
template <class Functions>
class Unit {
 public:
  Unit(const Functions& nvrtc, const CompileRequest& request, std::span<const SourceFile> sources)
      : nvrtc_(nvrtc), request_(request) {
    std::vector<std::string> held;
    held.reserve(2 * sources.size());  // the compiler wants each text with a zero at its end
    std::vector<const char*> texts;
    std::vector<const char*> names;
    for (const SourceFile& file : sources) {
      names.push_back(held.emplace_back(file.name).c_str());
      texts.push_back(held.emplace_back(file.text).c_str());
    }
    const std::string text = "#include \"" + request.source + "\"\n";
    nvrtc_.check(
        nvrtc_.nvrtcCreateProgram(&program_, text.c_str(), "dfa.cu", static_cast<int>(names.size()),
                                  texts.data(), names.data()),
        "nvrtcCreateProgram");
    nvrtc_.check(nvrtc_.nvrtcAddNameExpression(program_, request.name_expression.c_str()),
                 "nvrtcAddNameExpression");
  }
  ~Unit() {
    if (program_ != nullptr) nvrtc_.nvrtcDestroyProgram(&program_);
  }
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  Result compile() const {
    std::vector<std::string> options{"--gpu-architecture=" + request_.arch, "--std=c++20",
                                     "--ptxas-options=-v"};
    options.insert(options.end(), request_.options.begin(), request_.options.end());
    std::vector<const char*> pointers;
    for (const std::string& option : options) pointers.push_back(option.c_str());
    return nvrtc_.nvrtcCompileProgram(program_, static_cast<int>(pointers.size()), pointers.data());
  }

  std::string log() const {
    std::size_t size = 0;
    if (nvrtc_.nvrtcGetProgramLogSize(program_, &size) != kSuccess || size <= 1) return "";
    std::string text(size, '\0');
    nvrtc_.nvrtcGetProgramLog(program_, text.data());
    text.resize(size - 1);
    return text;
  }

  std::string lowered_name() const {
    const char* name = nullptr;
    nvrtc_.check(nvrtc_.nvrtcGetLoweredName(program_, request_.name_expression.c_str(), &name),
                 "nvrtcGetLoweredName");
    return name;
  }

  std::string cubin() const {
    std::size_t size = 0;
    nvrtc_.check(nvrtc_.nvrtcGetCUBINSize(program_, &size), "nvrtcGetCUBINSize");
    std::string bytes(size, '\0');
    nvrtc_.check(nvrtc_.nvrtcGetCUBIN(program_, bytes.data()), "nvrtcGetCUBIN");
    return bytes;
  }

 private:
  const Functions& nvrtc_;
  const CompileRequest& request_;
  Program program_ = nullptr;
};

void check_arch(const std::string& arch, const std::vector<int>& known,
                const std::string& version) {
  if (std::find(known.begin(), known.end(), number_of(arch)) != known.end()) return;
  std::string accepted;
  for (const int number : known) accepted += ", sm_" + std::to_string(number);
  throw Unsupported(version + ": architecture '" + arch +
                    "'; accepted: " + accepted.substr(accepted.empty() ? 0 : 2));
}

// A kernel that compiles but would be slow or wrong about its registers is an error of ours.
void check_report(const PtxasReport& report, const std::string& what, const std::string& log) {
  if (!report.warning.empty()) throw CompileError(what + ": " + report.warning, log);
  if (report.spill_bytes > 0) {
    throw CompileError(what + ": registers spill, " + std::to_string(report.spill_bytes) +
                           " bytes of stores and loads",
                       log);
  }
}

}  // namespace

Nvrtc::Nvrtc(std::span<const SourceFile> sources) : Nvrtc(sources, default_names()) {}

Nvrtc::Nvrtc(std::span<const SourceFile> sources, std::vector<std::string> library_names)
    : functions_(std::make_unique<const Functions>(library_names)), sources_(sources) {}

Nvrtc::~Nvrtc() = default;

Verdict Nvrtc::available() const { return functions_->status; }

std::string Nvrtc::version() const { return functions_->version; }

CompiledKernel Nvrtc::compile(const CompileRequest& request) const {
  const Functions& nvrtc = *functions_;
  if (!nvrtc.status) throw Unsupported(nvrtc.status.reason);
  check_arch(request.arch, nvrtc.architectures, nvrtc.version);
  const std::string what = "kernel " + request.name_expression + " for " + request.arch;
  const Unit unit(nvrtc, request, sources_);
  const Result result = unit.compile();
  CompiledKernel kernel;
  kernel.log = unit.log();
  if (result != kSuccess) {
    throw CompileError(
        what + ": " + nvrtc.nvrtcGetErrorString(result) + ": " + first_error(kernel.log),
        kernel.log);
  }
  const PtxasReport report = read_ptxas_log(kernel.log);
  check_report(report, what, kernel.log);
  kernel.lowered_name = unit.lowered_name();
  kernel.cubin = unit.cubin();
  kernel.registers = report.registers;
  kernel.smem_bytes = report.smem_bytes;
  kernel.stack_bytes = report.stack_bytes;
  return kernel;
}

}  // namespace dfa::cuda
