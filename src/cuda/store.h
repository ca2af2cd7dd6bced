#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cuda/cache.h"
#include "cuda/compiler.h"
#include "cuda/embedded.h"
#include "cuda/sources.h"
#include "dfa/problem.h"

namespace dfa::cuda {

enum class KernelOrigin : int { memory, embedded, packaged, disk, compiled };
const char* name_of(KernelOrigin origin);

// Of their names and of their texts without comments and layout.
std::string digest_of_sources(std::span<const SourceFile> sources);

// A kernel's code and where it came from.
struct StoredKernel {
  std::shared_ptr<const CompiledKernel> code{};
  KernelOrigin origin = KernelOrigin::compiled;
  bool kept = false;     // on disk, in a package or in the library; note says why not
  std::string digest{};  // of everything but the compiler's version that the code depends on
  std::string note{};  // what went wrong on the way without stopping it, e.g. "not kept on disk: …"
};

// The folders that a store looks into.
struct StoreFolders {
  std::filesystem::path cache{};     // empty: nothing is kept on disk
  std::filesystem::path packaged{};  // kernels compiled ahead, only read; empty: none
};

// Compiled kernels, looked for in memory, among those built into the library, among those of a
// package, in a folder, and then made by the compiler; in the package, and where there is no
// compiler, a file that any made from the same sources serves. The folder may be read-only, full,
// shared by several processes or gone: then kernels are compiled each time and StoredKernel::note
// says why. Entries are verified when read; a damaged one is made anew. Thread-safe; the same
// kernel is compiled once, also by two processes at once.
class KernelStore {
 public:
  KernelStore(StoreFolders folders, std::shared_ptr<const Compiler> compiler,
              std::span<const SourceFile> sources = kernel_sources(),
              std::span<const EmbeddedKernel> embedded = embedded_kernels());
  ~KernelStore();

  // Throws Unsupported when the kernel is nowhere and there is no compiler, and whatever the
  // compiler throws. Costs a digest of the request at least: keep the result, do not ask per
  // launch. cuda: the version of CUDA that the driver has, 13000; code that a later major version
  // compiled ahead is passed over, as drivers do not run it. 0: whatever it is.
  StoredKernel get(const CompileRequest& request, int cuda = 0);

  // The digest get() would look for.
  std::string digest_of(const CompileRequest& request) const;

  const StoreFolders& folders() const { return folders_; }
  const Compiler& compiler() const { return *compiler_; }

 private:
  struct Entry;
  std::shared_ptr<Entry> entry_of(const std::string& digest);
  bool take_embedded(StoredKernel& result) const;
  bool take_ahead(int cuda, StoredKernel& result) const;
  StoredKernel find_or_compile(const std::string& digest, const CompileRequest& request,
                               int cuda) const;

  StoreFolders folders_;
  std::shared_ptr<const Compiler> compiler_;
  std::string sources_digest_;
  std::span<const EmbeddedKernel> embedded_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>> entries_;
};

// The store of this process: NVRTC, cache_folder() and packaged_folder().
KernelStore& kernel_store();

}  // namespace dfa::cuda
