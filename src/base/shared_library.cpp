#include "base/shared_library.h"

#include <dlfcn.h>

namespace dfa {

SharedLibrary SharedLibrary::open_first(std::span<const std::string> names) {
  SharedLibrary library;
  library.reason_ = "no library name was given";
  for (const std::string& name : names) {
    // Never unmapped: what drivers and compilers leave behind in a process points into them.
    library.handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library.handle_ != nullptr) {
      library.name_ = name;
      library.reason_.clear();
      break;
    }
    const char* why = ::dlerror();
    library.reason_ = why != nullptr ? why : name + ": cannot be loaded";
  }
  return library;
}

SharedLibrary::~SharedLibrary() {
  if (handle_ != nullptr) ::dlclose(handle_);
}

void* SharedLibrary::symbol(const char* name) const {
  return handle_ == nullptr ? nullptr : ::dlsym(handle_, name);
}

}  // namespace dfa
