#include "cuda/store.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/digest.h"
#include "base/enum_table.h"
#include "base/file.h"
#include "cuda/cache.h"
#include "cuda/entry_file.h"
#include "cuda/file_lock.h"
#include "cuda/nvrtc.h"
#include "dfa/version.h"

namespace dfa::cuda {
namespace {

namespace fs = std::filesystem;

constexpr auto kOrigins = enum_table<KernelOrigin>({{KernelOrigin::memory, "memory"},
                                                    {KernelOrigin::embedded, "embedded"},
                                                    {KernelOrigin::packaged, "packaged"},
                                                    {KernelOrigin::disk, "disk"},
                                                    {KernelOrigin::compiled, "compiled"}});

// Texts of any content, told apart by their lengths.
void add(std::string& all, std::string_view text) {
  all += std::to_string(text.size()) + ":";
  all += text;
}

// Code that any compiler made: of those that the driver runs the newest, by name.
fs::path any_entry(const fs::path& folder, const std::string& digest, int cuda) {
  fs::path best;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder / "kernels", error)) {
    const fs::path& path = entry.path();
    const std::string name = path.filename().string();
    const bool fits = name.starts_with(digest) && path.extension() == ".kernel" &&
                      (cuda == 0 || cuda_major(name.substr(digest.size())) <= cuda / 1000);
    if (fits && best < path) best = path;
  }
  return best;
}

void append(std::string& note, const std::string& more) {
  note += (note.empty() ? "" : "; ") + more;
}

// Fills the result when the bytes are the kernel asked for; else notes what is wrong with them.
bool take(std::string_view bytes, const std::string& name, KernelOrigin origin,
          StoredKernel& result) {
  try {
    CacheFile file = decode(bytes);
    if (file.digest != result.digest) throw IoError("it holds another kernel");
    result.origin = origin;
    result.kept = true;
    result.code = std::make_shared<const CompiledKernel>(std::move(file.kernel));
    return true;
  } catch (const IoError& problem) {
    append(result.note, name + " not used: " + problem.what());
    return false;
  }
}

bool take_file(const fs::path& path, KernelOrigin origin, StoredKernel& result) {
  const std::string name = (origin == KernelOrigin::packaged ? "packaged kernel " : "cache file ") +
                           path.filename().string();
  std::error_code error;
  if (!fs::exists(path, error)) return false;
  try {
    return take(read_file(path), name, origin, result);
  } catch (const IoError& problem) {
    append(result.note, name + " not used: " + problem.what());
    return false;
  }
}

}  // namespace

std::string digest_of_sources(std::span<const SourceFile> sources) {
  std::string all;
  for (const SourceFile& file : sources) {
    add(all, file.name);
    add(all, code_of(file.text));
  }
  return digest(all);
}

const char* name_of(KernelOrigin origin) { return kOrigins.name(origin); }

struct KernelStore::Entry {
  std::mutex mutex;  // held while the kernel is read or compiled
  StoredKernel kernel;
};

KernelStore::KernelStore(StoreFolders folders, std::shared_ptr<const Compiler> compiler,
                         std::span<const SourceFile> sources,
                         std::span<const EmbeddedKernel> embedded)
    : folders_(std::move(folders)),
      compiler_(std::move(compiler)),
      sources_digest_(digest_of_sources(sources)),
      embedded_(embedded) {}

KernelStore::~KernelStore() = default;

std::string KernelStore::digest_of(const CompileRequest& request) const {
  std::string all;
  for (const std::string_view text :
       {std::string_view(kVersion), std::string_view(sources_digest_),
        std::string_view(request.source), std::string_view(request.name_expression),
        std::string_view(request.arch)}) {
    add(all, text);
  }
  for (const std::string& option : request.options) add(all, option);
  if (!request.preamble.empty()) add(all, request.preamble);
  return digest(all);
}

std::shared_ptr<KernelStore::Entry> KernelStore::entry_of(const std::string& digest) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Entry>& entry = entries_[digest];
  if (entry == nullptr) entry = std::make_shared<Entry>();
  return entry;
}

StoredKernel KernelStore::get(const CompileRequest& request, int cuda) {
  const std::string digest = digest_of(request);
  const std::shared_ptr<Entry> entry = entry_of(digest);
  const std::lock_guard lock(entry->mutex);
  if (entry->kernel.code != nullptr) {
    StoredKernel again = entry->kernel;
    again.origin = KernelOrigin::memory;
    again.note.clear();
    return again;
  }
  entry->kernel = find_or_compile(digest, request, cuda);
  return entry->kernel;
}

bool KernelStore::take_embedded(StoredKernel& result) const {
  for (const EmbeddedKernel& kernel : embedded_) {
    if (kernel.digest != result.digest) continue;
    return take(kernel.bytes, "embedded kernel", KernelOrigin::embedded, result);
  }
  return false;
}

bool KernelStore::take_ahead(int cuda, StoredKernel& result) const {
  if (take_embedded(result)) return true;
  if (folders_.packaged.empty()) return false;
  const fs::path path = any_entry(folders_.packaged, result.digest, cuda);
  return !path.empty() && take_file(path, KernelOrigin::packaged, result);
}

StoredKernel KernelStore::find_or_compile(const std::string& digest, const CompileRequest& request,
                                          int cuda) const {
  StoredKernel result{.digest = digest};
  if (take_ahead(cuda, result)) return result;
  const auto compile = [&] {
    result.code = std::make_shared<const CompiledKernel>(compiler_->compile(request));
  };
  const fs::path& folder = folders_.cache;
  if (folder.empty()) {
    append(result.note, "not kept on disk: there is no cache folder");
    compile();
    return result;
  }
  const Verdict can_compile = compiler_->available();
  const fs::path path =
      can_compile ? path_of(folder, digest, compiler_->version()) : any_entry(folder, digest, cuda);
  const std::string note = result.note;
  if (take_file(path, KernelOrigin::disk, result)) return result;
  if (!can_compile) compile();  // throws the reason

  std::error_code ignored;  // a folder that cannot be made shows when the file is written
  fs::create_directories(path.parent_path(), ignored);
  const FileLock lock(path.string() + ".lock");
  result.note = note;
  // Another process may have made it in the meantime.
  if (take_file(path, KernelOrigin::disk, result)) return result;
  compile();
  try {
    write_file_atomic(path, encode({digest, compiler_->version(), request, *result.code}));
    result.kept = true;
  } catch (const IoError& error) {
    append(result.note, std::string("not kept on disk: ") + error.what());
  }
  return result;
}

KernelStore& kernel_store() {
  // Never destroyed: kernels may be asked for while the process ends.
  static auto* const store = new KernelStore(
      {.cache = cache_folder(), .packaged = packaged_folder()}, std::make_shared<const Nvrtc>());
  return *store;
}

}  // namespace dfa::cuda
