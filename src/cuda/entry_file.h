#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "cuda/compiler.h"

namespace dfa::cuda {

// One file of the cache: a compiled kernel and what it was compiled from. The first line holds the
// digest of the rest, which is a line of JSON and the cubin.
struct CacheFile {
  std::string digest;  // of the request and the sources, not of the compiler
  std::string compiler;
  CompileRequest request;
  CompiledKernel kernel;
};

std::string encode(const CacheFile& file);

// Throws IoError that says what is wrong: not one of our files, cut off, or bytes changed.
CacheFile decode(std::string_view bytes);

// All but the code, which is neither read nor verified. Throws IoError where the file cannot be
// read or is not one of ours.
CacheFile read_description(const std::filesystem::path& path);

// Where a kernel lies: folder/kernels/<digest>.<compiler>.kernel
std::filesystem::path path_of(const std::filesystem::path& folder, const std::string& digest,
                              const std::string& compiler);

// The major version of CUDA that code of this compiler is for, 13 of "nvrtc 13.0"; 0 of others.
// Takes the end of a path_of(), too.
int cuda_major(const std::string& compiler);

// Is this the name of a cache file, of its lock or of one left half-written?
bool is_cache_name(const std::string& name);

}  // namespace dfa::cuda
