#include "privileges/broker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace dfa::privileges {
namespace {

constexpr double kRetry = 1;      // s between attempts to put a card back,
constexpr double kRetries = 0.1;  // which take so much of the time at most
constexpr double kLeftover = 10;  // s that a killed server's restore daemons may take to do that

// "00000000:3B:00.0" is "0000:3b:00.0".
std::string plain(std::string id) {
  if (id.starts_with("GPU-")) return id;
  for (char& c : id) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return id.size() == 16 ? id.substr(4) : id;
}

// Takes the levers and gives them back, which undoes what a killed process left.
Verdict undo(const std::string& card) try {
  nvml::RestoreDaemon restorer;
  const auto opened = restorer.open(card);
  return opened.value ? restorer.end() : opened.status;
} catch (const Unsupported& error) {  // no process left
  return Verdict::no(error.what());
}

Verdict undo_patiently(const std::string& card) {
  const double end = monotonic_s() + kLeftover;
  for (;;) {
    const Verdict undone = undo(card);
    const bool held = undone.reason.find("another process holds") != std::string::npos;
    if (undone || !held || monotonic_s() > end) return undone;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

Json pair(const std::optional<Range>& range, double unit) {
  if (!range) return nullptr;
  return {range->least * unit, range->most * unit};
}

Json levers_of(const Grant& grant) {
  return {{"limit_w", pair(grant.limit_w, 1)},
          {"clock_mhz", pair(grant.clock_hz, 1e-6)},
          {"lease_s", grant.lease_s}};
}

Json done() { return {{"ok", true}}; }

}  // namespace

Broker::Broker(std::vector<Grant> grants, const std::string& file, Log log)
    : grants_(std::move(grants)), log_(std::move(log)) {
  for (Grant& grant : grants_) know(grant, file);
  for (auto& [id, card] : cards_) {
    if (const Verdict undone = undo_patiently(id); !undone) {
      throw Unsupported(fmt::format("the levers of {} cannot be had: {}", id, undone.reason));
    }
  }
}

Broker::~Broker() { static_cast<void>(close()); }

void Broker::know(Grant& grant, const std::string& file) {
  if (find(grant.card) == nullptr) {
    nvml::RestoreDaemon restorer;
    const auto known = restorer.identify(grant.card);
    if (!known.value) {
      throw Unsupported(fmt::format("{}:{}: {}", file, grant.line, known.status.reason));
    }
    cards_[known.value->pci_id].known = *known.value;
  }
  const Card& card = *find(grant.card);
  grant.card = card.known.pci_id;
  for (const Grant& one : grants_) {
    if (&one == &grant) break;
    if (one.card == grant.card && one.is_group == grant.is_group && one.id == grant.id) {
      throw InvalidArgument(fmt::format("{}:{}: line {} is for the same card and the same {}", file,
                                        grant.line, one.line, grant.is_group ? "group" : "user"));
    }
  }
  if (grant.clock_hz) {
    nvml::RestoreDaemon restorer;
    const Verdict has = restorer.has_clock(grant.card, *grant.clock_hz);
    if (!has) throw InvalidArgument(fmt::format("{}:{}: {}", file, grant.line, has.reason));
  }
  if (!grant.limit_w) return;
  const Range takes{card.known.limits.least_w, card.known.limits.most_w};
  grant.limit_w =
      Range{std::max(grant.limit_w->least, takes.least), std::min(grant.limit_w->most, takes.most)};
  if (grant.limit_w->least <= grant.limit_w->most) return;
  throw InvalidArgument(fmt::format("{}:{}: no limit of this range; this card takes {:g} to {:g} W",
                                    file, grant.line, takes.least, takes.most));
}

Broker::Card* Broker::find(const std::string& id) {
  for (auto& [pci, card] : cards_) {
    if (pci == plain(id) || (!id.empty() && card.known.uuid == id)) return &card;
  }
  return nullptr;
}

const Grant* Broker::grant_for(const Card& card, const Peer& peer) const {
  for (const Grant& grant : grants_) {
    if (grant.card == card.known.pci_id && grant.is_for(peer)) return &grant;
  }
  return nullptr;
}

Verdict Broker::enter(int connection, const Peer& peer) {
  const bool known = std::any_of(grants_.begin(), grants_.end(),
                                 [&](const Grant& grant) { return grant.is_for(peer); });
  if (!known) return Verdict::no(fmt::format("user {} is allowed nothing here", peer.uid));
  clients_[connection].peer = peer;
  return Verdict::yes();
}

Json Broker::answer(int connection, std::string_view line, double now_s) {
  Client& client = clients_.at(connection);
  try {
    const Request request = parse_request(line);
    if (request.op == Op::hello) return hello(client, request);
    if (!client.greeted) return refusal("\"hello\" comes first");
    switch (request.op) {
      case Op::lease: return lease(connection, client, request, now_s);
      case Op::set: return set(connection, client, request);
      case Op::restore: return restore(connection, client, request, now_s);
      default: return status(now_s);
    }
  } catch (const Error& error) {
    return refusal(error.what());
  }
}

Json Broker::hello(Client& client, const Request& request) const {
  if (request.version != kVersion) {
    return refusal(fmt::format("another version of the protocol; accepted: {}", kVersion));
  }
  client.greeted = true;
  Json cards = Json::array();
  for (const auto& [id, card] : cards_) {
    const Grant* grant = grant_for(card, client.peer);
    if (grant == nullptr) continue;
    Json one{{"card", id}, {"uuid", card.known.uuid}, {"name", card.known.name}};
    one.update(levers_of(*grant));
    cards.push_back(std::move(one));
  }
  Json reply = done();
  reply["version"] = kVersion;
  reply["cards"] = std::move(cards);
  return reply;
}

Verdict Broker::lend(Card& card) try {
  auto restorer = std::make_unique<nvml::RestoreDaemon>();
  const auto limits = restorer->open(card.known.pci_id);
  if (!limits.value) return limits.status;
  card.restorer = std::move(restorer);
  card.known.limits = *limits.value;
  return Verdict::yes();
} catch (const Unsupported& error) {  // no process left
  return Verdict::no(error.what());
}

Json Broker::lease(int connection, Client& client, const Request& request, double now_s) {
  Card* card = find(request.card);
  const Grant* grant = card != nullptr ? grant_for(*card, client.peer) : nullptr;
  if (grant == nullptr) {
    return refusal(fmt::format("user {} is allowed nothing of card {}", client.peer.uid,
                               quoted(request.card)));
  }
  const std::string& id = card->known.pci_id;
  const double seconds = request.seconds.value_or(grant->lease_s);
  if (seconds > grant->lease_s) {
    return refusal(
        fmt::format("a lease of {:g} s; accepted: up to {:g} s", seconds, grant->lease_s));
  }
  if (!card->owed) return refusal(id + " could not be put back yet: " + card->owed.reason);
  const Lease wanted{.connection = connection,
                     .pid = client.peer.pid,
                     .uid = client.peer.uid,
                     .until_s = now_s + seconds};
  if (const Verdict taken = leases_.take(id, wanted, now_s); !taken) return refusal(taken.reason);
  const bool renewed = card->restorer != nullptr;
  if (!renewed) {
    if (const Verdict lent = lend(*card); !lent) {
      leases_.end(id);
      return refusal(lent.reason);
    }
    client.lost.erase(id);
    log_(fmt::format("{} is lent to process {} of user {} for {:g} s", id, wanted.pid, wanted.uid,
                     seconds));
  }
  Json reply = done();
  reply["card"] = id;
  reply["found_w"] = card->known.limits.found_w;
  reply.update(levers_of(*grant));
  reply["lease_s"] = seconds;
  reply["renewed"] = renewed;
  return reply;
}

Json Broker::not_held(const Client& client, const Card& card) const {
  const auto lost = client.lost.find(card.known.pci_id);
  return refusal(lost != client.lost.end()
                     ? lost->second
                     : card.known.pci_id + " is not lent to you; ask for a lease");
}

Json Broker::set(int connection, Client& client, const Request& request) {
  Card* card = find(request.card);
  if (card == nullptr) return refusal("no card " + quoted(request.card));
  Lease* lease = leases_.held(card->known.pci_id, connection);
  if (lease == nullptr) return not_held(client, *card);
  const Grant& grant = *grant_for(*card, client.peer);
  const auto outside = [](const char* what, const std::optional<Range>& allowed, double unit) {
    return refusal(allowed ? fmt::format("{}; accepted: {:g} to {:g}", what, allowed->least * unit,
                                         allowed->most * unit)
                           : fmt::format("{}; the list allows none", what));
  };
  if (request.frees_limit) {
    if (const Verdict free = card->restorer->free_power_limit(); !free) return refusal(free.reason);
    lease->limit_w = std::nullopt;
    return done();
  }
  if (request.limit_w) {
    const double watts = *request.limit_w;
    if (!grant.limit_w || !grant.limit_w->holds(watts)) {
      return outside(fmt::format("limit_w {:g}", watts).c_str(), grant.limit_w, 1);
    }
    if (const Verdict set = card->restorer->set_power_limit(watts); !set)
      return refusal(set.reason);
    lease->limit_w = watts;
    return done();
  }
  if (request.unlocks_clock) {
    if (const Verdict free = card->restorer->unlock_clocks(); !free) return refusal(free.reason);
    lease->clock_hz = std::nullopt;
    return done();
  }
  const Range hz = *request.clock_hz;
  if (!grant.clock_hz || !grant.clock_hz->holds(hz.least) || !grant.clock_hz->holds(hz.most)) {
    return outside(fmt::format("clock_mhz {:g} to {:g}", 1e-6 * hz.least, 1e-6 * hz.most).c_str(),
                   grant.clock_hz, 1e-6);
  }
  if (const Verdict set = card->restorer->lock_clocks(hz.least, hz.most); !set) {
    return refusal(set.reason);
  }
  lease->clock_hz = hz;
  return done();
}

Json Broker::restore(int connection, Client& client, const Request& request, double now_s) {
  Card* card = find(request.card);
  if (card == nullptr) return refusal("no card " + quoted(request.card));
  if (leases_.held(card->known.pci_id, connection) == nullptr) return not_held(client, *card);
  take_back(*card, "given back", now_s);
  return card->owed ? done() : refusal(card->owed.reason);
}

Json Broker::status(double now_s) const {
  Json cards = Json::array();
  for (const auto& [id, card] : cards_) {
    Json one{{"card", id}, {"uuid", card.known.uuid}, {"name", card.known.name}};
    one["lease"] = nullptr;
    if (const Lease* lease = leases_.of(id)) {
      one["lease"] = {{"pid", lease->pid},
                      {"uid", lease->uid},
                      {"seconds_left", std::max(0.0, lease->until_s - now_s)},
                      {"limit_w", lease->limit_w ? Json(*lease->limit_w) : Json()},
                      {"clock_mhz", pair(lease->clock_hz, 1e-6)}};
    }
    one["trouble"] = card.owed ? Json() : Json(card.owed.reason);
    cards.push_back(std::move(one));
  }
  Json reply = done();
  reply["cards"] = std::move(cards);
  return reply;
}

void Broker::take_back(Card& card, const std::string& why, double now_s) {
  const std::string& id = card.known.pci_id;
  if (const Lease* lease = leases_.of(id)) {
    const auto client = clients_.find(lease->connection);
    if (client != clients_.end())
      client->second.lost[id] = id + " is not lent to you any more: " + why;
  }
  leases_.end(id);
  card.owed = card.restorer->end();
  card.restorer.reset();
  if (!card.owed) card.owed = undo(id);  // its restore daemon was ended, say
  card.retry_s = now_s + kRetry;
  log_(card.owed ? fmt::format("{} was put back: {}", id, why)
                 : fmt::format("{} could not be put back: {}", id, card.owed.reason));
}

void Broker::leave(int connection, double now_s) {
  clients_.erase(connection);
  for (const std::string& id : leases_.held_by(connection)) {
    take_back(cards_.at(id), "its client has gone", now_s);
  }
}

void Broker::tick(double now_s) {
  for (const std::string& id : leases_.over(now_s)) {
    take_back(cards_.at(id), "its lease has run out", now_s);
  }
  for (auto& [id, card] : cards_) {
    if (card.owed || card.retry_s > now_s) continue;
    const double begin = monotonic_s();
    card.owed = undo(id);
    card.retry_s = now_s + std::max(kRetry, (monotonic_s() - begin) / kRetries);
    if (card.owed) log_(id + " was put back at last");
  }
}

std::optional<double> Broker::next_s() const {
  std::optional<double> next = leases_.next_end_s();
  for (const auto& [id, card] : cards_) {
    if (!card.owed) next = std::min(next.value_or(card.retry_s), card.retry_s);
  }
  return next;
}

std::vector<int> Broker::restorers() const {
  std::vector<int> descriptors;
  for (const auto& [id, card] : cards_) {
    if (card.restorer) descriptors.push_back(card.restorer->connection());
  }
  return descriptors;
}

void Broker::restorer_ended(int descriptor, double now_s) {
  for (auto& [id, card] : cards_) {
    if (!card.restorer || card.restorer->connection() != descriptor) continue;
    take_back(card, "the process that guarded it has ended", now_s);
  }
}

Verdict Broker::close() {
  std::string trouble;
  for (auto& [id, card] : cards_) {
    if (card.restorer) take_back(card, "the daemon ends", 0);
    if (!card.owed) trouble += (trouble.empty() ? "" : "; ") + id + ": " + card.owed.reason;
  }
  return trouble.empty() ? Verdict::yes() : Verdict::no("not put back: " + trouble);
}

}  // namespace dfa::privileges
