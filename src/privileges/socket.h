#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>

#include "base/descriptor.h"
#include "base/lock_file.h"

namespace dfa::privileges {

// One server a path: PATH.lock, which ends with its holder, however that ends. Throws IoError.
LockFile lock_for(const std::filesystem::path& path);

// A Unix socket that listens and does not block, of mode 0660, and of a group where one is named.
// It takes the place of one that nobody listens at any more: under lock_for(path).
class Listener {
 public:
  // Throws InvalidArgument where the path is longer than a socket's may be, IoError.
  Listener(const std::filesystem::path& path, std::optional<gid_t> group);
  ~Listener();  // removes it
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int get() const { return socket_.get(); }

 private:
  std::filesystem::path path_;
  Descriptor socket_;
};

// A connection that blocks; -1 and errno where there is none. Throws InvalidArgument likewise.
Descriptor connect_to(const std::filesystem::path& path);

}  // namespace dfa::privileges
