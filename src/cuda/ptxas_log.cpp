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
    const bool gave_up = line.find("Potential Performance Loss") != line.npos;
    if (gave_up && report.warning.empty()) report.warning = line;
  }
  return report;
}

}  // namespace dfa::cuda
