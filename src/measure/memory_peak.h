#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace dfa::measure {

// Bytes of host memory that `body` touched on top of what was resident before it, or why that
// cannot be told. Uses the kernel's resident high-water mark, which it resets; correct to some
// hundred kilobytes. `proc` is /proc, replaceable for tests.
struct MemoryGrowth {
  std::optional<std::int64_t> bytes;
  std::string reason;
};

MemoryGrowth measure_growth(const std::function<void()>& body,
                            const std::filesystem::path& proc = "/proc");

}  // namespace dfa::measure
