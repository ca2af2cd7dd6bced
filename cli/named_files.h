#pragma once

#include <initializer_list>
#include <string>

namespace dfa::cli {

struct NamedFile {
  const char* option;
  std::string path;  // empty: not given
};

// Throws InvalidArgument where a file that is written would replace one that is read, or another
// one that is written. Streams and devices hold nothing that would be lost.
void require_apart(std::initializer_list<NamedFile> written, std::initializer_list<NamedFile> read);

}  // namespace dfa::cli
