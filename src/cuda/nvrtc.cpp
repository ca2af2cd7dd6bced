#include "cuda/nvrtc.h"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <string_view>

#include "cuda/nvrtc_library.h"
#include "cuda/ptxas_log.h"

namespace dfa::cuda {
namespace {

constexpr NvrtcResult kSuccess = NvrtcLibrary::kSuccess;

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

namespace {

// One translation unit: an include of the kernel's file.
class Unit {
 public:
  Unit(const NvrtcLibrary& nvrtc, const CompileRequest& request,
       std::span<const SourceFile> sources)
      : nvrtc_(nvrtc), request_(request) {
    std::vector<std::string> held;
    held.reserve(2 * sources.size());  // the compiler wants each text with a zero at its end
    std::vector<const char*> texts;
    std::vector<const char*> names;
    for (const SourceFile& file : sources) {
      names.push_back(held.emplace_back(file.name).c_str());
      texts.push_back(held.emplace_back(file.text).c_str());
    }
    const std::string text = request.preamble + "#include \"" + request.source + "\"\n";
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

  NvrtcResult compile() const {
    std::vector<std::string> options{"--gpu-architecture=" + request_.arch, "--std=c++20",
                                     "--ptxas-options=-v"};
    options.insert(options.end(), request_.options.begin(), request_.options.end());
    std::vector<const char*> pointers;
    pointers.reserve(options.size());
    for (const std::string& option : options) pointers.push_back(option.c_str());
    return nvrtc_.nvrtcCompileProgram(program_, static_cast<int>(pointers.size()), pointers.data());
  }

  std::string log() const {
    std::size_t size = 0;
    if (nvrtc_.nvrtcGetProgramLogSize(program_, &size) != kSuccess || size <= 1) return "";
    std::string text(size, '\0');
    nvrtc_.nvrtcGetProgramLog(program_, text.data());
    return without_times(text.c_str());
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
  const NvrtcLibrary& nvrtc_;
  const CompileRequest& request_;
  NvrtcProgram program_ = nullptr;
};

void check_arch(const std::string& arch, const std::vector<int>& known,
                const std::string& version) {
  if (std::find(known.begin(), known.end(), number_of(arch)) != known.end()) return;
  std::string accepted;
  for (const int number : known) accepted += ", sm_" + std::to_string(number);
  throw Unsupported(version + ": architecture '" + arch +
                    "'; accepted: " + accepted.substr(accepted.empty() ? 0 : 2));
}

}  // namespace

Nvrtc::Nvrtc(std::span<const SourceFile> sources) : sources_(sources) {}

Nvrtc::Nvrtc(std::span<const SourceFile> sources, std::vector<std::string> library_names)
    : sources_(sources), library_names_(std::move(library_names)) {}

Nvrtc::~Nvrtc() = default;

const NvrtcLibrary& Nvrtc::library() const {
  std::call_once(once_, [this] {
    library_ = std::make_unique<const NvrtcLibrary>(library_names_ ? *library_names_
                                                                   : NvrtcLibrary::default_names());
  });
  return *library_;
}

Verdict Nvrtc::available() const { return library().status; }

std::string Nvrtc::version() const { return library().version; }

std::string Nvrtc::file() const {
  Dl_info info{};
  const auto address = reinterpret_cast<const void*>(library().nvrtcVersion);
  if (!library().status || ::dladdr(address, &info) == 0) return library().file.name();
  return info.dli_fname;
}

CompiledKernel Nvrtc::compile(const CompileRequest& request) const {
  const NvrtcLibrary& nvrtc = library();
  if (!nvrtc.status) throw Unsupported(nvrtc.status.reason);
  check_arch(request.arch, nvrtc.architectures, nvrtc.version);
  const std::string what = "kernel " + request.name_expression + " for " + request.arch;
  const Unit unit(nvrtc, request, sources_);
  const NvrtcResult result = unit.compile();
  CompiledKernel kernel;
  kernel.log = unit.log();
  if (result != kSuccess) {
    throw CompileError(
        what + ": " + nvrtc.nvrtcGetErrorString(result) + ": " + first_error(kernel.log),
        kernel.log);
  }
  const PtxasReport report = read_ptxas_log(kernel.log);
  // One that compiles but would be slow or wrong about its registers is an error. What a user's
  // text ahead of it needs nobody has counted: such a kernel may be slow.
  const int most_spilled =
      request.preamble.empty() ? kMostSpilled : std::numeric_limits<int>::max();
  if (const std::string why = refusal(report, nvrtc.version, most_spilled); !why.empty()) {
    throw CompileError(what + " " + why, kernel.log);
  }
  // A few registers are a text's price: its writer is told of more.
  if (request.preamble.empty() || report.spill_bytes > kMostSpilled) {
    kernel.warning = spill_warning(report, nvrtc.version);
  }
  kernel.lowered_name = unit.lowered_name();
  kernel.cubin = unit.cubin();
  kernel.registers = report.registers;
  kernel.smem_bytes = report.smem_bytes;
  kernel.stack_bytes = report.stack_bytes;
  return kernel;
}

}  // namespace dfa::cuda
