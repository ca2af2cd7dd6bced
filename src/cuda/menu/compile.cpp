// dfa_compile_menu PROBLEMS ARCH…: compiles the kernels of every problem line of a file into
// DFA_CACHE_DIR, from where the build puts them into the library.
#include <cstdio>
#include <exception>
#include <sstream>
#include <string>

#include "base/file.h"
#include "cuda/cache.h"

namespace {

void compile(const dfa::Problem& problem, const char* arch) {
  const auto wanted = dfa::cuda::wanted_kernels(std::span(&problem, 1), {.arch = arch});
  for (const auto& [line, why] : wanted.refused) throw dfa::Unsupported(why);
  dfa::cuda::warm_kernels(wanted.kernels, 1, [](const dfa::cuda::WarmKernel& kernel) {
    if (kernel.error != nullptr) std::rethrow_exception(kernel.error);
    if (!kernel.note.empty()) throw dfa::IoError(kernel.note);
  });
}

void compile_all(const char* problems, char** archs, char** end) {
  std::istringstream lines(dfa::read_file(problems));
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.front() == '#') continue;
    for (char** arch = archs; arch != end; ++arch) {
      compile(dfa::parse_problem(line), *arch);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: dfa_compile_menu PROBLEMS ARCH...\n");
    return 2;
  }
  try {
    compile_all(argv[1], argv + 2, argv + argc);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dfa_compile_menu: %s\n", error.what());
    return 1;
  }
  return 0;
}
