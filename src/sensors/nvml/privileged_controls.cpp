#include "sensors/nvml/privileged_controls.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/env.h"
#include "sensors/gpu/clocks.h"

namespace dfa::nvml {
namespace {

constexpr const char* kGivenBack = "the levers of this card were given back; open them again";

template <typename Of>
void find(const Library& library, Of& function) {
  function.address = reinterpret_cast<decltype(function.address)>(library.symbol(function.name));
}

}  // namespace

struct PrivilegedControls::Api {
  Function<Handle, unsigned> set_limit{"nvmlDeviceSetPowerManagementLimit"};
  Function<Handle, unsigned, unsigned> lock_clocks{"nvmlDeviceSetGpuLockedClocks"};
  Function<Handle> unlock_clocks{"nvmlDeviceResetGpuLockedClocks"};

  explicit Api(const Library& library) {
    find(library, set_limit);
    find(library, lock_clocks);
    find(library, unlock_clocks);
  }
};

// What was found, in a file that a reboot removes, as it removes limits and locked clocks; locked
// for as long as these levers are held.
class PrivilegedControls::Memory {
 public:
  explicit Memory(const std::string& pci_id) {
    std::string name = "dfa-card-" + pci_id;
    for (char& c : name) c = c == ':' ? '-' : c;
    path_ = std::filesystem::path(env("DFA_STATE_DIR")) / name;
  }
  ~Memory() { close(); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Whoever gives the levers back removes the file under its lock: one that was opened before that
  // and locked after it is no longer there, and would lock nothing.
  Verdict lock() {
    do {
      close();
      fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
      if (fd_ < 0) return trouble("open");
      if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) continue;
      const Verdict held =
          Verdict::no("another process holds the levers of this card (" + path_.string() + ")");
      return errno == EWOULDBLOCK ? held : trouble("lock");
    } while (!still_there());
    return Verdict::yes();
  }

  struct Leftover {
    unsigned limit_mw = 0;
    int clocks_locked = 0;
  };
  std::optional<Leftover> leftover() const {
    std::array<char, 128> text{};
    if (::pread(fd_, text.data(), text.size() - 1, 0) <= 0) return std::nullopt;
    Leftover left;
    const int read = std::sscanf(text.data(), "power_limit_mw %u clocks_locked %d", &left.limit_mw,
                                 &left.clocks_locked);
    return read == 2 ? std::optional(left) : std::nullopt;
  }

  Verdict remember(unsigned limit_mw, bool clocks_locked) {
    const std::string text =
        fmt::format("power_limit_mw {} clocks_locked {}\n", limit_mw, clocks_locked ? 1 : 0);
    errno = ENOSPC;  // what a write that falls short means
    const bool written =
        ::pwrite(fd_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) &&
        ::ftruncate(fd_, static_cast<off_t>(text.size())) == 0;
    return written ? Verdict::yes() : trouble("write");
  }

  // Under the lock, which ends with this object.
  void forget() {
    if (::ftruncate(fd_, 0) == 0) ::unlink(path_.c_str());
  }

 private:
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

  bool still_there() const {
    struct stat held {};
    struct stat found {};
    return ::fstat(fd_, &held) == 0 && ::stat(path_.c_str(), &found) == 0 &&
           held.st_dev == found.st_dev && held.st_ino == found.st_ino;
  }

  Verdict trouble(const char* action) const {
    return Verdict::no(fmt::format(
        "cannot {} '{}': {}; what a card was set to is kept there, DFA_STATE_DIR names another "
        "folder",
        action, path_.string(), std::strerror(errno)));
  }

  std::filesystem::path path_;
  int fd_ = -1;
};

Value<PowerLimits> read_power_limits(const Device& device) {
  Function<Handle, unsigned*> limit{"nvmlDeviceGetPowerManagementLimit"};
  Function<Handle, unsigned*, unsigned*> range{"nvmlDeviceGetPowerManagementLimitConstraints"};
  find(device.library(), limit);
  find(device.library(), range);
  unsigned found = 0, least = 0, most = 0;
  if (const Verdict got = limit(device.handle(), &found); !got) return {std::nullopt, got};
  if (const Verdict got = range(device.handle(), &least, &most); !got) return {std::nullopt, got};
  return {PowerLimits{1e-3 * found, 1e-3 * least, 1e-3 * most}, {}};
}

PrivilegedControls::PrivilegedControls(const Device& device, std::unique_ptr<Api> api)
    : device_(device), api_(std::move(api)) {}

PrivilegedControls::~PrivilegedControls() { static_cast<void>(restore()); }

PrivilegedControls::Opened PrivilegedControls::open(const Device& device) {
  std::unique_ptr<PrivilegedControls> levers(
      new PrivilegedControls(device, std::make_unique<Api>(device.library())));
  const Verdict taken = levers->take();
  if (!taken) return {nullptr, taken};
  return {std::move(levers), taken};
}

Verdict PrivilegedControls::take() {
  if (device_.settings().mig) {
    return Verdict::no("the card is in MIG mode: its limit and clocks are of all its instances");
  }
  auto memory = std::make_unique<Memory>(device_.facts().pci_id);
  if (const Verdict locked = memory->lock(); !locked) return locked;
  memory_ = std::move(memory);
  if (const Verdict undone = undo_leftover(); !undone) {
    memory_.reset();  // and not forgotten: the next run tries again
    return undone;
  }
  const auto limits = read_power_limits(device_);
  if (!limits.value) return limits.status;
  limits_ = *limits.value;
  found_mw_ = static_cast<unsigned>(std::llround(limits_.found_w * 1e3));
  return api_->set_limit(device_.handle(), found_mw_);
}

Verdict PrivilegedControls::undo_leftover() {
  const auto left = memory_->leftover();
  if (!left) return Verdict::yes();
  if (const Verdict set = api_->set_limit(device_.handle(), left->limit_mw); !set) return set;
  return left->clocks_locked != 0 ? api_->unlock_clocks(device_.handle()) : Verdict::yes();
}

Verdict PrivilegedControls::set_power_limit(double watts) {
  if (!memory_) return Verdict::no(kGivenBack);
  if (!(watts >= limits_.least_w && watts <= limits_.most_w)) {
    return Verdict::no(fmt::format("power limit {:g} W; this card takes {:g} to {:g} W", watts,
                                   limits_.least_w, limits_.most_w));
  }
  if (const Verdict kept = memory_->remember(found_mw_, clocks_locked_); !kept) return kept;
  limit_changed_ = true;
  return api_->set_limit(device_.handle(), static_cast<unsigned>(std::llround(watts * 1e3)));
}

Verdict PrivilegedControls::free_power_limit() {
  if (!memory_) return Verdict::no(kGivenBack);
  if (!limit_changed_) return Verdict::yes();
  const Verdict freed = api_->set_limit(device_.handle(), found_mw_);
  limit_changed_ = !freed;
  return freed;
}

Verdict PrivilegedControls::lock_clocks(double least_hz, double most_hz) {
  if (!memory_) return Verdict::no(kGivenBack);
  if (!(kAnyClocks.holds(least_hz) && kAnyClocks.holds(most_hz) && most_hz >= least_hz)) {
    return Verdict::no(fmt::format("clocks {:g} to {:g} MHz; a range above 0 is expected",
                                   least_hz * 1e-6, most_hz * 1e-6));
  }
  if (!clocks_hz_.value) clocks_hz_ = device_.sm_clocks_hz();
  if (const Verdict has = sensors::has_clock("clocks", {least_hz, most_hz}, clocks_hz_); !has) {
    return has;
  }
  if (const Verdict kept = memory_->remember(found_mw_, true); !kept) return kept;
  clocks_locked_ = true;
  return api_->lock_clocks(device_.handle(), static_cast<unsigned>(std::lround(least_hz * 1e-6)),
                           static_cast<unsigned>(std::lround(most_hz * 1e-6)));
}

Verdict PrivilegedControls::unlock_clocks() {
  if (!memory_) return Verdict::no(kGivenBack);
  if (!clocks_locked_) return Verdict::yes();
  const Verdict unlocked = api_->unlock_clocks(device_.handle());
  clocks_locked_ = !unlocked;
  return unlocked;
}

Verdict PrivilegedControls::restore() {
  Verdict limit = Verdict::yes(), clocks = Verdict::yes();
  if (limit_changed_) limit = api_->set_limit(device_.handle(), found_mw_);
  if (clocks_locked_) clocks = api_->unlock_clocks(device_.handle());
  limit_changed_ = limit_changed_ && !limit;
  clocks_locked_ = clocks_locked_ && !clocks;
  if (memory_ && limit && clocks) {  // else the next run tries again
    memory_->forget();
    memory_.reset();
  }
  return limit ? clocks : limit;
}

}  // namespace dfa::nvml
