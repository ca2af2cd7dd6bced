#pragma once

#include <dlfcn.h>
#include <stdlib.h>

#include <stdexcept>
#include <string>

#include "base/file.h"
#include "contract/clock.h"
#include "sensors/nvml/device.h"
#include "sensors/nvml/library.h"
#include "temp_dir.h"

namespace dfa::testing {

// One card at a steady 300 W and a counter that ticks every 100 ms and costs 3.8 ms a read.
inline const std::string kCard =
    "clock virtual\n"
    "latency nvmlDeviceGetTotalEnergyConsumption 0.0038\n"
    "card H200 GPU-aa 00000000:3B:00.0\n"
    "power constant 300\n";

// The made-up NVML, loaded through the real path, in a scenario of its own. One at a time.
class NvmlWorld final : public Clock {
 public:
  // `without` names a function that this copy of the library lacks.
  explicit NvmlWorld(const std::string& scenario, const std::string& without = "") {
    const auto file = tree_.write("scenario", scenario);
    library_file_ = without.empty() ? DFA_FAKE_NVML_LIBRARY : copy_without(without);
    ::setenv("DFA_NVML", library_file_.c_str(), 1);
    ::setenv("DFA_FAKE_NVML", file.c_str(), 1);
    const nvml::OpenedLibrary opened = nvml::open_library();
    library = opened.library;
    status = opened.status;
    handle_ = ::dlopen(library_file_.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) throw std::runtime_error(::dlerror());
  }
  ~NvmlWorld() override {
    library.reset();
    ::dlclose(handle_);
    ::unsetenv("DFA_NVML");
    ::unsetenv("DFA_FAKE_NVML");
  }

  double now_s() const override { return function<double()>("dfa_fake_nvml_now")(); }
  void sleep_s(double seconds) override { function<void(double)>("dfa_fake_nvml_sleep")(seconds); }

  bool initialised() const { return function<bool()>("dfa_fake_nvml_ready")(); }

  nvml::Device card(const std::string& id = "0000:3b:00.0") const {
    const auto found = nvml::find_device(library, id);
    if (!found.value) throw std::runtime_error(found.status.reason);
    return *found.value;
  }

  std::shared_ptr<const nvml::Library> library;
  Verdict status;

 private:
  // The name is spoilt in the copy's symbol table, so that the loader does not find it.
  std::string copy_without(const std::string& symbol) const {
    std::string bytes = read_file(DFA_FAKE_NVML_LIBRARY);
    const std::string name = '\0' + symbol + '\0';
    std::size_t found = 0;
    for (auto at = bytes.find(name); at != std::string::npos; at = bytes.find(name, at + 1)) {
      bytes[at + 1] = 'x';
      ++found;
    }
    if (found == 0) throw std::runtime_error(symbol + " is not in the library");
    return tree_.write("lib/" + symbol + ".so", bytes).string();
  }

  template <typename Signature>
  Signature* function(const char* name) const {
    return reinterpret_cast<Signature*>(::dlsym(handle_, name));
  }

  TempDir tree_;
  std::string library_file_;
  void* handle_ = nullptr;
};

}  // namespace dfa::testing
