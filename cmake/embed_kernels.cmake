# cmake -DFOLDER=… -DOUTPUT=… -P embed_kernels.cmake: writes a C++ file that holds every compiled
# kernel of a cache folder, byte for byte.
file(GLOB paths ${FOLDER}/kernels/*.kernel)
list(LENGTH paths count)
set(assembly "")
set(declarations "")
set(table "")
set(index 0)
foreach(path IN LISTS paths)
  get_filename_component(name ${path} NAME)
  string(REGEX REPLACE "[.].*" "" digest ${name})
  string(APPEND assembly "    \".global dfa_kernel_${index}, dfa_kernel_${index}_end\\n\"
    \".hidden dfa_kernel_${index}, dfa_kernel_${index}_end\\n\"
    \"dfa_kernel_${index}: .incbin \\\"${path}\\\"\\n\"
    \"dfa_kernel_${index}_end:\\n\"\n")
  string(APPEND declarations "extern const char dfa_kernel_${index}[], dfa_kernel_${index}_end[];\n")
  string(APPEND table "      {\"${digest}\", {dfa_kernel_${index}, static_cast<std::size_t>(dfa_kernel_${index}_end - dfa_kernel_${index})}},\n")
  math(EXPR index "${index} + 1")
endforeach()

file(WRITE ${OUTPUT} "// Made by cmake/embed_kernels.cmake.
#include \"cuda/embedded.h\"

#include <array>

asm(\".pushsection .rodata\\n\"
${assembly}    \".popsection\\n\");

extern \"C\" {
${declarations}}

namespace dfa::cuda {

std::span<const EmbeddedKernel> embedded_kernels() {
  static const std::array<EmbeddedKernel, ${count}> kernels{{
${table}  }};
  return kernels;
}

}  // namespace dfa::cuda\n")
