#include "cuda/cache.h"

#include "cuda_absent/reason.h"

namespace dfa::cuda {
namespace {

[[noreturn]] void refuse() { throw Unsupported(std::string("kernel cache: ") + kNoCuda); }

}  // namespace

std::filesystem::path cache_folder() { refuse(); }
std::vector<CacheEntry> list_cache(const std::filesystem::path&) { refuse(); }
int clear_cache(const std::filesystem::path&) { refuse(); }
std::vector<WarmKernel> warm_cache(const Problem&, const std::string&, Algorithm) { refuse(); }
CompilerInfo compiler_info() { return {false, kNoCuda}; }

}  // namespace dfa::cuda
