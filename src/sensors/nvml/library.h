#pragma once

#include <memory>
#include <string>

#include "base/shared_library.h"
#include "dfa/error.h"
#include "sensors/nvml/api.h"

namespace dfa::nvml {

// NVML, loaded at run time and initialised for as long as somebody holds it. Every function is
// optional: what an old library lacks is a reason, not an error.
class Library {
 public:
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  const Api& api() const { return api_; }
  // A function that is not of the table; null where the library lacks it.
  void* symbol(const char* name) const { return file_.symbol(name); }
  const std::string& file() const { return file_.name(); }
  std::string driver_version() const;  // "580.159.04", empty where the library does not tell
  std::string version() const;         // of NVML itself, likewise

 private:
  friend struct LibraryOpener;
  Library() = default;

  SharedLibrary file_;
  Api api_;
  bool initialised_ = false;
};

// The library, or why there is none: no such file, no driver, versions that do not match, ….
struct OpenedLibrary {
  std::shared_ptr<const Library> library;
  Verdict status;
};

// Loads the file that DFA_NVML names, by default the driver's libnvidia-ml.so.1. Never throws.
OpenedLibrary open_library();

}  // namespace dfa::nvml
