#include "measure/memory_peak.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "sensors/text_value.h"

namespace dfa::measure {
namespace {

// "VmHWM" or "VmRSS" of this process, in bytes; -1 when the file does not tell.
std::int64_t resident(const std::filesystem::path& status, const char* field) {
  const std::string text = sensors::find_field(sensors::read_text(status), field, ':');
  return text.empty() ? -1 : std::strtoll(text.c_str(), nullptr, 10) * 1024;
}

bool reset_high_water(const std::filesystem::path& clear_refs) {
  std::ofstream file(clear_refs);
  file << "5\n";
  return static_cast<bool>(file.flush());
}

}  // namespace

MemoryGrowth measure_growth(const std::function<void()>& body, const std::filesystem::path& proc) {
  const std::filesystem::path status = proc / "self" / "status";
  const std::filesystem::path clear_refs = proc / "self" / "clear_refs";
  ::malloc_trim(0);  // memory freed but kept would hide what the body takes
  if (!reset_high_water(clear_refs)) {
    body();
    return {std::nullopt,
            "the peak of resident memory cannot be reset in '" + clear_refs.string() + "'"};
  }
  const std::int64_t before = resident(status, "VmRSS");
  body();
  const std::int64_t peak = resident(status, "VmHWM");
  if (before < 0 || peak < 0) {
    return {std::nullopt, "'" + status.string() + "' tells no VmRSS and VmHWM"};
  }
  return {std::max<std::int64_t>(0, peak - before), ""};
}

}  // namespace dfa::measure
