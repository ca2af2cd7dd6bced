#include "cli/owner.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/env.h"
#include "base/quantity.h"
#include "dfa/error.h"
#include "privileges/client.h"
#include "sensors/nvml/restore_daemon.h"

namespace dfa::cli {
namespace {

double parse_watts(const std::string& text) {
  if (const auto watts = number_with(text, "W")) return *watts;
  throw InvalidArgument("--power-limit '" + text + "'; accepted: watts with their unit, e.g. 500W");
}

std::pair<double, double> parse_clocks(const std::string& text) {
  if (const auto mhz = range_with(text, "MHz")) return {mhz->least * 1e6, mhz->most * 1e6};
  throw InvalidArgument("--lock-clocks '" + text + "'; accepted: 1200MHz or 1000:1400MHz");
}

const char* asked_by(const OwnerOptions& options) {
  return options.asks ? "--privileges" : "--allow-privileged";
}

}  // namespace

void OwnerOptions::add_permission(CLI::App& command) {
  command.add_flag("--allow-privileged", allowed,
                   "let this run change the card's own power limit and clocks, and put them back "
                   "at its end: for the owner of the card, as root");
  command.add_flag("--privileges", asks,
                   "have the card's own power limit and clocks lent by the daemon of its owner "
                   "(dfa privileges), for this run");
  command.add_option("--socket", socket, "of that daemon (DFA_PRIVILEGES)");
  command.add_option("--card", card,
                     "PCI bus id or UUID of the card to change (the one that the backend uses)");
}

void OwnerOptions::add_to(CLI::App& command) {
  add_permission(command);
  command.add_option("--power-limit", power_limit,
                     "the card's own limit during the run, e.g. 500W; needs one of these two");
  command.add_option("--lock-clocks", clocks,
                     "clocks of the multiprocessors during the run, 1200MHz or 1000:1400MHz, "
                     "unlocked at its end; likewise");
}

LentCard::LentCard(const OwnerOptions& options) : options_(options) {
  if (options.allowed && options.asks) {
    throw InvalidArgument("--allow-privileged and --privileges; accepted: one of them");
  }
  if (!options.socket.empty() && !options.asks) {
    throw InvalidArgument("--socket '" + options.socket + "'; accepted only with --privileges");
  }
  const bool lent = options.allowed || options.asks;
  const std::pair<const char*, const std::string&> needing[] = {
      {"--power-limit", options.power_limit},
      {"--lock-clocks", options.clocks},
      {"--card", options.card}};
  for (const auto& [name, value] : needing) {
    if (value.empty() || lent) continue;
    throw InvalidArgument(fmt::format(
        "{} '{}' changes the card itself; accepted only with --allow-privileged, or with "
        "--privileges where a daemon lends it",
        name, value));
  }
  if (!lent) return;
  if (!options.power_limit.empty()) fixed_w_ = parse_watts(options.power_limit);
  if (!options.clocks.empty()) clocks_hz_ = parse_clocks(options.clocks);
  if (options.allowed) {
    control_ = std::make_unique<nvml::RestoreDaemon>();
  } else {
    auto client = std::make_unique<privileges::Client>(
        options.socket.empty() ? env("DFA_PRIVILEGES") : options.socket);
    for (const auto& offer : client->offers()) lease_s_ = std::min(lease_s_, offer.lease_s);
    control_ = std::move(client);
  }
}

void LentCard::refuse(const std::string& reason) const {
  throw Unsupported(fmt::format("{}: {}; nothing was changed", asked_by(options_), reason));
}

void LentCard::require(const Verdict& verdict) const {
  if (!verdict) throw Unsupported(fmt::format("{}: {}", asked_by(options_), verdict.reason));
}

void LentCard::take(const GpuIdentity& gpu, double seconds) {
  if (!control_) return;
  const std::string card = options_.card.empty() ? gpu.pci_id : options_.card;
  if (card.empty()) refuse("this backend runs on no GPU; accepted: --backend cuda, or --card ID");
  const auto limits = control_->open(card);
  if (!limits.value) refuse(limits.status.reason);
  limits_ = *limits.value;
  if (const Verdict lent = control_->keep(seconds); !lent) refuse(lent.reason);
  if (fixed_w_) require(control_->set_power_limit(*fixed_w_));
  card_ = card;
  if (!clocks_hz_) return;
  const auto [least_hz, most_hz] = *clocks_hz_;
  const auto lent_hz = control_->clocks_hz();
  if (lent_hz && lent_hz->holds(least_hz) && lent_hz->holds(most_hz)) {
    run::require_clocks("--lock-clocks '" + options_.clocks + "'", {least_hz, most_hz}, card);
  }
  require(control_->lock_clocks(least_hz, most_hz));
}

void LentCard::require_clock(const power::Policy& policy) const {
  if (control_) run::require_clock(policy, card_, run::lent_by(*control_, limits_));
}

void LentCard::require_clock(const OperatingPoint& point) const {
  if (control_) run::require_clock(point, card_, run::lent_by(*control_, limits_));
}

void LentCard::hold(double seconds) {
  if (!control_) return;
  try {
    held_ = std::make_unique<run::HeldLevers>(std::move(control_), limits_, seconds);
  } catch (const Unsupported& error) {
    require(Verdict::no(error.what()));
  }
}

std::vector<double> LentCard::clocks_of(const std::string& text) const {
  return run::clocks_of(text, card_, held_->lent());
}

void LentCard::lock_clock(double hz) {
  try {
    held_->lock_clock(hz);
  } catch (const Unsupported& error) {
    require(Verdict::no(error.what()));
  }
}

// What an option has set for the whole run is no lever of a policy.
power::Lent LentCard::lent() const {
  if (!held_) return {};
  power::Lent lent = held_->lent();
  if (lent.limit && fixed_w_) lent.limit->usual_w = lent.limit->most_w = *fixed_w_;
  if (clocks_hz_) lent.clocks.reset();
  return lent;
}

Verdict LentCard::end() {
  if (held_) return held_->end();
  return control_ ? control_->end() : Verdict::yes();
}

}  // namespace dfa::cli
