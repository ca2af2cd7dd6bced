#include "cli/owner.h"

#include <fmt/format.h>

#include <utility>

#include "base/quantity.h"
#include "dfa/error.h"

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

[[noreturn]] void refuse(const std::string& reason) {
  throw Unsupported("--allow-privileged: " + reason + "; nothing was changed");
}

void require(const Verdict& verdict) {
  if (!verdict) throw Unsupported("--allow-privileged: " + verdict.reason);
}

}  // namespace

void OwnerOptions::add_to(CLI::App& command) {
  command.add_flag("--allow-privileged", allowed,
                   "let this run change the card's own power limit and clocks, and put them back "
                   "at its end: for the owner of the card, as root");
  command.add_option("--power-limit", power_limit,
                     "the card's own limit during the run, e.g. 500W; needs --allow-privileged");
  command.add_option("--lock-clocks", clocks,
                     "clocks of the multiprocessors during the run, 1200MHz or 1000:1400MHz, "
                     "unlocked at its end; needs --allow-privileged");
  command.add_option("--card", card,
                     "PCI bus id or UUID of the card to change (the one that the backend uses)");
}

LentCard::LentCard(const OwnerOptions& options) : options_(options) {
  const std::pair<const char*, const std::string&> needing[] = {
      {"--power-limit", options.power_limit},
      {"--lock-clocks", options.clocks},
      {"--card", options.card}};
  for (const auto& [name, value] : needing) {
    if (value.empty() || options.allowed) continue;
    throw InvalidArgument(
        fmt::format("{} '{}' changes the card itself; accepted only with "
                    "--allow-privileged",
                    name, value));
  }
  if (!options.allowed) return;
  if (!options.power_limit.empty()) fixed_w_ = parse_watts(options.power_limit);
  if (!options.clocks.empty()) clocks_hz_ = parse_clocks(options.clocks);
  guardian_ = std::make_unique<nvml::Guardian>();
}

void LentCard::take(const GpuIdentity& gpu) {
  if (!guardian_) return;
  const std::string card = options_.card.empty() ? gpu.pci_id : options_.card;
  if (card.empty()) refuse("this backend runs on no GPU; accepted: --backend cuda, or --card ID");
  const auto limits = guardian_->open(card);
  if (!limits.value) refuse(limits.status.reason);
  limits_ = *limits.value;
  if (fixed_w_) require(guardian_->set_power_limit(*fixed_w_));
  if (clocks_hz_) require(guardian_->lock_clocks(clocks_hz_->first, clocks_hz_->second));
}

std::optional<power::Limit> LentCard::limit() {
  if (!guardian_) return std::nullopt;
  return power::Limit{.usual_w = fixed_w_.value_or(limits_.found_w),
                      .least_w = limits_.least_w,
                      .most_w = fixed_w_.value_or(limits_.most_w),
                      .set = [this](double watts) { guardian_->request_power_limit(watts); }};
}

Verdict LentCard::end() { return guardian_ ? guardian_->end() : Verdict::yes(); }

}  // namespace dfa::cli
