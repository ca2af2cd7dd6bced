#include "sensors/nvml/library.h"

#include <array>
#include <utility>

#include "base/env.h"

namespace dfa::nvml {
namespace {

struct StatusText {
  int status;
  const char* text;
};

constexpr StatusText kStatusTexts[] = {
    {1, "NVML is not initialised"},
    {2, "invalid argument"},
    {3, "not supported by this device"},
    {4, "no permission"},
    {6, "not found"},
    {7, "the buffer is too small"},
    {8, "power cables of the GPU are not attached"},
    {9, "the NVIDIA driver is not loaded"},
    {10, "timed out"},
    {11, "the kernel has trouble with interrupts of the GPU"},
    {12, "a library that NVML needs is not there"},
    {13, "the driver lacks this function"},
    {15, "the GPU is lost: it fell off the bus"},
    {16, "the GPU needs a reset"},
    {17, "the operating system blocks access to the GPU (container or control group)"},
    {18, "NVML and the driver in the kernel are of different versions"},
    {20, "out of memory"},
    {21, "no data"},
    {25, "NVML does not know this version of an argument"},
    {26, "no longer supported by NVML"},
    {27, "not ready"},
    {28, "no such GPU"},
};

std::string text_of(const Function<char*, unsigned>& function) {
  std::array<char, 96> text{};
  return function(text.data(), text.size() - 1) ? std::string(text.data()) : std::string();
}

}  // namespace

std::string status_text(int status) {
  for (const StatusText& known : kStatusTexts) {
    if (known.status == status) return known.text;
  }
  return "status " + std::to_string(status);
}

Library::~Library() {
  if (initialised_) api_.shutdown();
}

std::string Library::driver_version() const { return text_of(api_.driver_version); }
std::string Library::version() const { return text_of(api_.nvml_version); }

struct LibraryOpener {
  static OpenedLibrary open() {
    const std::string names[] = {env("DFA_NVML")};
    std::shared_ptr<Library> library(new Library);
    library->file_ = SharedLibrary::open_first(names);
    if (!library->file_.is_open()) {
      return {nullptr, Verdict::no("NVML: " + library->file_.reason())};
    }
    for_each_function(library->api_, [&](auto& function) {
      function.address =
          reinterpret_cast<decltype(function.address)>(library->file_.symbol(function.name));
    });
    const Verdict ready = library->api_.init();
    if (!ready) return {nullptr, Verdict::no("NVML: " + ready.reason)};
    library->initialised_ = true;
    return {library, Verdict::yes()};
  }
};

OpenedLibrary open_library() { return LibraryOpener::open(); }

}  // namespace dfa::nvml
