#include "attention/registry.h"

#include "cpu/backend.h"
#include "cuda/backend.h"
#include "reference/backend.h"

namespace dfa {

const std::vector<const Backend*>& all_backends() {
  static const std::vector<const Backend*> backends{&cuda_backend(), &cpu_backend(),
                                                    &reference_backend()};
  return backends;
}

const Backend& find_backend(const std::string& name) {
  std::string names;
  for (const Backend* backend : all_backends()) {
    if (backend->name() == name) return *backend;
    names += (names.empty() ? "" : ", ") + backend->name();
  }
  throw InvalidArgument("backend '" + name + "' is unknown; accepted: auto, " + names);
}

}  // namespace dfa
