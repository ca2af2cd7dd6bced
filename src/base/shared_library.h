#pragma once

#include <span>
#include <string>
#include <utility>

namespace dfa {

// A library opened at run time, so that a machine without it can still start the program.
class SharedLibrary {
 public:
  // The first of `names` that loads; when none does, is_open() is false and reason() tells why,
  // with one line for the last name tried.
  static SharedLibrary open_first(std::span<const std::string> names);

  SharedLibrary() = default;
  SharedLibrary(SharedLibrary&& other) noexcept { swap(other); }
  SharedLibrary& operator=(SharedLibrary&& other) noexcept {
    swap(other);
    return *this;
  }
  ~SharedLibrary();

  bool is_open() const { return handle_ != nullptr; }
  const std::string& name() const { return name_; }
  const std::string& reason() const { return reason_; }

  // Address of a symbol, null when the library lacks it or is not open.
  void* symbol(const char* name) const;

 private:
  void swap(SharedLibrary& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(name_, other.name_);
    std::swap(reason_, other.reason_);
  }

  void* handle_ = nullptr;
  std::string name_;
  std::string reason_ = "not opened";
};

}  // namespace dfa
