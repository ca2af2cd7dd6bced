#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "privileges/allow.h"
#include "privileges/leases.h"
#include "privileges/protocol.h"
#include "sensors/nvml/restore_daemon.h"

namespace dfa::privileges {

// Answers requests: who may, who holds, what is set. Of a card that is lent the levers are held by
// a restore daemon, a process of its own, so that this one never loads NVML: a driver that hangs or
// crashes takes no other card with it, and however this process ends, each restore daemon puts its
// card back.
class Broker {
 public:
  using Log = std::function<void(const std::string&)>;

  // Asks the driver for the cards of the list, and undoes what killed processes left on them.
  // Throws InvalidArgument for a grant that no card can keep, Unsupported where a card is not there
  // or its levers cannot be had.
  Broker(std::vector<Grant> grants, const std::string& file, Log log);
  ~Broker();  // as close()
  Broker(const Broker&) = delete;
  Broker& operator=(const Broker&) = delete;

  // A connection by a number that is never used again. A reason where the list has nothing for it.
  Verdict enter(int connection, const Peer& peer);
  Json answer(int connection, std::string_view line, double now_s);
  void leave(int connection, double now_s);  // its cards are put back

  // Ends leases that have run out, and tries again to put cards back that could not be.
  void tick(double now_s);
  std::optional<double> next_s() const;  // when tick() has something to do

  // Connections to restore daemons, which can be read only when a restore daemon has ended.
  std::vector<int> restorers() const;
  void restorer_ended(int descriptor, double now_s);

  Verdict close();  // puts everything back: what could not be

 private:
  struct Card {
    nvml::CardIdentity known;
    std::unique_ptr<nvml::RestoreDaemon> restorer;  // null: not lent
    Verdict owed;                                   // why it could not be put back, where so
    double retry_s = 0;
  };
  struct Client {
    Peer peer;
    bool greeted = false;
    std::map<std::string, std::string> lost;  // why it holds a card no more
  };

  void know(Grant& grant, const std::string& file);
  Card* find(const std::string& id);
  const Grant* grant_for(const Card& card, const Peer& peer) const;
  Json hello(Client& client, const Request& request) const;
  Json lease(int connection, Client& client, const Request& request, double now_s);
  Json set(int connection, Client& client, const Request& request);
  Json restore(int connection, Client& client, const Request& request, double now_s);
  Json status(double now_s) const;
  static Verdict lend(Card& card);
  Json not_held(const Client& client, const Card& card) const;
  void take_back(Card& card, const std::string& why, double now_s);

  std::vector<Grant> grants_;  // their cards by PCI bus id, their limits within the cards' own
  Log log_;
  std::map<std::string, Card> cards_;  // by PCI bus id
  std::map<int, Client> clients_;
  Leases leases_;
};

}  // namespace dfa::privileges
