# cmake -DROOT=… -DOUTPUT=… -P embed_sources.cmake: writes a C++ file with the text of every device
# header of ROOT/src/kernels and of all headers those include, as string literals.
cmake_policy(SET CMP0057 NEW)  # if(… IN_LIST …)
file(GLOB_RECURSE files RELATIVE ${ROOT}/src ${ROOT}/src/kernels/*.cuh)
set(names "")
while(files)
  list(POP_FRONT files name)
  if(name IN_LIST names)
    continue()
  endif()
  set(path ${ROOT}/src/${name})
  if(NOT EXISTS ${path})
    set(path ${ROOT}/include/${name})
  endif()
  list(APPEND names ${name})
  file(STRINGS ${path} includes REGEX "^ *# *include")
  foreach(line IN LISTS includes)
    if(NOT line MATCHES "^ *# *include +\"([^\"]+)\"")
      message(FATAL_ERROR "${path}: '${line}': device code includes headers of ours alone")
    endif()
    set(included ${CMAKE_MATCH_1})
    if(NOT EXISTS ${ROOT}/src/${included} AND NOT EXISTS ${ROOT}/include/${included})
      message(FATAL_ERROR "${path}: \"${included}\" is neither in src nor in include")
    endif()
    list(APPEND files ${included})
  endforeach()
endwhile()
list(SORT names)
list(LENGTH names count)

file(WRITE ${OUTPUT} "// Made by cmake/embed_sources.cmake.
#include \"cuda/sources.h\"

#include <array>

namespace dfa::cuda {
namespace {

constexpr std::array<SourceFile, ${count}> kSources{{\n")
foreach(name IN LISTS names)
  set(path ${ROOT}/src/${name})
  if(NOT EXISTS ${path})
    set(path ${ROOT}/include/${name})
  endif()
  file(READ ${path} text)
  file(APPEND ${OUTPUT} "{\"${name}\",\nR\"dfa_text(")
  file(APPEND ${OUTPUT} "${text}")
  file(APPEND ${OUTPUT} ")dfa_text\"},\n")
endforeach()
file(APPEND ${OUTPUT} "}};

}  // namespace

std::span<const SourceFile> embedded_sources() { return kSources; }

}  // namespace dfa::cuda\n")
