#include "cuda/cache.h"

#include "cuda_absent/reason.h"

namespace dfa::cuda {
namespace {

[[noreturn]] void refuse() { throw Unsupported(std::string("kernel cache: ") + kNoCuda); }

}  // namespace

std::filesystem::path cache_folder() { refuse(); }
std::vector<CacheEntry> list_cache(const std::filesystem::path&) { refuse(); }
int clear_cache(const std::filesystem::path&) { refuse(); }
std::filesystem::path packaged_folder() { refuse(); }
PackagedInfo packaged_info() { return {.text = kNoCuda}; }
WantedKernels wanted_kernels(std::span<const Problem>, const WarmCard&, Algorithm) { refuse(); }
void warm_kernels(const std::vector<WantedKernel>&, int,
                  const std::function<void(const WarmKernel&)>&) {
  refuse();
}
CompilerInfo compiler_info() { return {false, kNoCuda}; }

}  // namespace dfa::cuda
