#include "sensors/cpu_load.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <sstream>

#include "sensors/text_value.h"

namespace dfa::sensors {

std::optional<CpuSeconds> read_cpu_seconds(const HostRoots& roots) {
  std::istringstream line(read_text(roots.proc / "stat"));
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
  line >> name >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal;
  if (!line || name != "cpu") return std::nullopt;
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  const double busy = user + nice + system + irq + softirq + steal;
  std::timespec own{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own);
  return CpuSeconds{busy / ticks, (busy + idle + iowait) / ticks,
                    static_cast<double>(own.tv_sec) + 1e-9 * static_cast<double>(own.tv_nsec)};
}

std::optional<double> other_load_pct(const CpuSeconds& before, const CpuSeconds& after) {
  const double total = after.total - before.total;
  if (!(total > 0)) return std::nullopt;
  const double others = (after.busy - before.busy) - (after.own - before.own);
  return std::clamp(100 * others / total, 0.0, 100.0);
}

}  // namespace dfa::sensors
