#include "cuda/ptxas_log.h"

#include <algorithm>
#include <string_view>

namespace dfa::cuda {
namespace {

// The number in front of `word`, 0 when it is not there.
int number_before(std::string_view line, std::string_view word) {
  const std::size_t at = line.find(word);
  if (at == std::string_view::npos) return 0;
  std::size_t begin = at;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  return begin == at ? 0 : std::stoi(std::string(line.substr(begin, at - begin)));
}

// "(C75" and two digits: what ptxas says of setmaxnreg and wgmma.
bool has_code(std::string_view line) {
  const std::string_view code = "(C75";
  const std::size_t at = line.find(code);
  if (at == std::string_view::npos) return false;
  const std::string_view rest = line.substr(at + code.size());
  const auto digit = [&](std::size_t i) { return rest[i] >= '0' && rest[i] <= '9'; };
  return rest.size() > 2 && digit(0) && digit(1) && rest[2] == ')';
}

std::string spilled(const PtxasReport& report) {
  return std::to_string(report.spill_bytes) + " bytes of stores and loads a thread";
}

}  // namespace

PtxasReport read_ptxas_log(const std::string& log) {
  PtxasReport report;
  for (std::size_t from = 0; from < log.size();) {
    const std::size_t end = std::min(log.find('\n', from), log.size());
    const std::string_view line = std::string_view(log).substr(from, end - from);
    from = end + 1;
    report.registers = std::max(report.registers, number_before(line, " registers"));
    report.smem_bytes = std::max(report.smem_bytes, number_before(line, " bytes smem"));
    report.spill_bytes += number_before(line, " bytes spill stores");
    report.spill_bytes += number_before(line, " bytes spill loads");
    report.stack_bytes += number_before(line, " bytes stack frame");
    const bool gave_up = has_code(line) || line.find("Potential Performance Loss") != line.npos;
    if (gave_up && report.warning.empty()) report.warning = line;
  }
  return report;
}

std::string without_times(const std::string& log) {
  std::string kept;
  for (std::size_t from = 0; from < log.size();) {
    const std::size_t end = std::min(log.find('\n', from), log.size() - 1) + 1;
    const std::string_view line = std::string_view(log).substr(from, end - from);
    if (line.find("Compile time = ") == line.npos) kept += line;
    from = end;
  }
  return kept;
}

std::string spill_warning(const PtxasReport& report, const std::string& compiler) {
  if (report.spill_bytes == 0) return "";
  return "by " + compiler + " registers spill, " + spilled(report) +
         ": it may be slower than by another release (DFA_NVRTC)";
}

std::string refusal(const PtxasReport& report, const std::string& compiler, int most_spilled) {
  std::string why;
  if (!report.warning.empty()) {
    why = report.warning;
  } else if (report.spill_bytes > most_spilled) {
    why =
        "registers spill, " + spilled(report) + ", accepted: up to " + std::to_string(most_spilled);
  }
  if (why.empty()) return "";
  return "by " + compiler + ": " + why +
         "; another release of NVRTC (DFA_NVRTC names its folder) or other tiles (--config) may do";
}

}  // namespace dfa::cuda
