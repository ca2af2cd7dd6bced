# cmake -DFOLDER=… -DOUTPUT=… -P embed_profiles.cmake: writes a C++ file with the text of FOLDER/*.json.
file(GLOB files ${FOLDER}/*.json)
list(SORT files)
file(WRITE ${OUTPUT} "// Made by cmake/embed_profiles.cmake.
#include \"run/shipped_text.h\"

namespace dfa::run {

std::span<const char* const> shipped_texts() {
  static constexpr const char* kTexts[] = {\n")
foreach(path IN LISTS files)
  file(READ ${path} text)
  file(APPEND ${OUTPUT} "R\"dfa_text(${text})dfa_text\",\n")
endforeach()
file(APPEND ${OUTPUT} "};
  return kTexts;
}

}  // namespace dfa::run\n")
