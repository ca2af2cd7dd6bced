#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "privileges/protocol.h"
#include "sensors/gpu/control.h"

namespace dfa::privileges {

// A card as a daemon offers it to this process.
struct Offer {
  std::string card;  // its PCI bus id
  std::string uuid;
  std::string name;
  std::optional<Range> limit_w{};
  std::optional<Range> clock_hz{};
  double lease_s = 0;
};

// One connection to a daemon of privileges. One thread at a time may talk to it. When it ends, so
// do its leases.
class Client final : public sensors::CardControl {
 public:
  static constexpr double kPatience = 60;  // s; above a restore daemon's

  // Throws Unsupported in one line where no daemon answers there or it refuses this process.
  explicit Client(const std::filesystem::path& socket, double patience_s = kPatience);

  const std::vector<Offer>& offers() const { return offers_; }

  // Of a card whose limit is not lent, least_w and most_w are 0.
  sensors::Value<sensors::PowerLimits> open(const std::string& card) override;
  Verdict keep(double seconds) override;
  Verdict set_power_limit(double watts) override;
  Verdict lock_clocks(double least_hz, double most_hz) override;
  Verdict unlock_clocks() override;
  std::optional<Range> clocks_hz() const override { return clocks_hz_; }
  void request_power_limit(double watts) override;
  void request_clocks(double hz) override;
  Verdict end() override;

  sensors::Value<Json> status() { return ask({.op = Op::status}); }

 private:
  sensors::Value<Json> ask(const Request& request);
  void request(const Request& request);
  Verdict send(const Request& request);
  sensors::Value<Json> answer();

  std::filesystem::path path_;
  Descriptor socket_;
  LineBuffer lines_{kMostReply};
  std::vector<Offer> offers_;
  std::string card_;  // that is lent
  std::optional<Range> clocks_hz_;
  int owed_ = 0;     // answers that nobody waited for
  Verdict refused_;  // the first of them that was a refusal
};

}  // namespace dfa::privileges
