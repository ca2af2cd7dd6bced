#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "base/env.h"
#include "cli/command.h"
#include "dfa/error.h"
#include "privileges/client.h"
#include "privileges/server.h"
#include "privileges_unit.h"

namespace dfa::cli {
namespace {

struct PrivilegesArguments {
  std::string action;
  std::string socket;
  std::string allow;
  std::string group;
  bool json = false;

  std::string socket_path() const { return socket.empty() ? env("DFA_PRIVILEGES") : socket; }
};

// An option that the action has no use for is no option of it.
void require_used(const PrivilegesArguments& a) {
  const auto needs = [&](bool given, const char* option, std::initializer_list<const char*> uses) {
    const bool used =
        std::any_of(uses.begin(), uses.end(), [&](auto one) { return a.action == one; });
    if (!given || used) return;
    throw InvalidArgument(fmt::format("privileges {} has no use for {}; accepted with {}", a.action,
                                      option, fmt::join(uses, " and ")));
  };
  needs(!a.socket.empty(), "--socket", {"serve", "status"});
  needs(!a.allow.empty(), "--allow", {"serve", "check"});
  needs(!a.group.empty(), "--group", {"serve"});
  needs(a.json, "--json", {"status"});
}

void require_allow(const PrivilegesArguments& arguments) {
  if (!arguments.allow.empty()) return;
  throw InvalidArgument("privileges " + arguments.action +
                        ": --allow is required; accepted: a file of lines as 0000:3b:00.0 group:ml "
                        "limit:350:700W clock:900:1980MHz lease:2h");
}

std::string levers_text(const std::optional<Range>& limit_w, const std::optional<Range>& clock_hz,
                        double lease_s) {
  std::string text;
  if (limit_w) text += fmt::format("limit {:g} to {:g} W, ", limit_w->least, limit_w->most);
  if (clock_hz) {
    text += fmt::format("clocks {:g} to {:g} MHz, ", 1e-6 * clock_hz->least, 1e-6 * clock_hz->most);
  }
  return text + fmt::format("leases of {:g} s", lease_s);
}

void print_check(const PrivilegesArguments& arguments) {
  require_allow(arguments);
  for (const privileges::Grant& grant : privileges::read_allow_list(arguments.allow)) {
    fmt::print("{}:{}: {} for {} {}: {}\n", arguments.allow, grant.line, grant.card,
               grant.is_group ? "group" : "user", grant.id,
               levers_text(grant.limit_w, grant.clock_hz, grant.lease_s));
  }
}

// The end is asked for by a signal, which the loop of the server hears as it hears its clients.
Descriptor end_signals() {
  sigset_t ends;
  sigemptyset(&ends);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ends, number);
  ::sigprocmask(SIG_BLOCK, &ends, nullptr);
  Descriptor heard(::signalfd(-1, &ends, SFD_CLOEXEC));
  if (!heard.open()) throw IoError(std::string("signalfd: ") + std::strerror(errno));
  return heard;
}

// As it is in the sources, with the path of this very program.
void print_unit() {
  const std::string usual = "/usr/bin/dfa";
  std::string unit = kUnit;
  unit.replace(unit.find(usual), usual.size(),
               std::filesystem::read_symlink("/proc/self/exe").string());
  fmt::print("{}", unit);
}

void tell(const std::string& text) { std::fputs((text + "\n").c_str(), stderr); }

void serve(const PrivilegesArguments& arguments) {
  require_allow(arguments);
  privileges::Server::Options options{.socket = arguments.socket_path(),
                                      .grants = privileges::read_allow_list(arguments.allow),
                                      .allow_file = arguments.allow,
                                      .log = tell};
  if (!arguments.group.empty()) {
    options.group = privileges::find_group(arguments.group);
    if (!options.group) {
      throw InvalidArgument("--group '" + arguments.group +
                            "' is not known here; accepted: a group");
    }
  }
  const Descriptor stop = end_signals();
  ::signal(SIGPIPE, SIG_IGN);  // a log that nobody reads any more ends nothing
  privileges::Server server(std::move(options));
  tell("listening at '" + arguments.socket_path() + "'");
  server.run(stop.get());
  if (const Verdict closed = server.close(); !closed) throw Unsupported(closed.reason);
}

std::string lease_text(const Json& lease) {
  if (lease.is_null()) return "free";
  std::string text =
      fmt::format("process {} of user {}, {:.0f} s left", lease.at("pid").get<int>(),
                  lease.at("uid").get<unsigned>(), lease.at("seconds_left").get<double>());
  if (!lease.at("limit_w").is_null()) {
    text += fmt::format(", limit {:g} W", lease.at("limit_w").get<double>());
  }
  if (!lease.at("clock_mhz").is_null()) {
    text += fmt::format(", clocks {:g} to {:g} MHz", lease.at("clock_mhz").at(0).get<double>(),
                        lease.at("clock_mhz").at(1).get<double>());
  }
  return text;
}

Json offers_json(const std::vector<privileges::Offer>& offers) {
  Json all = Json::array();
  for (const privileges::Offer& offer : offers) {
    const auto pair = [](const std::optional<Range>& range, double unit) {
      return range ? Json{range->least * unit, range->most * unit} : Json();
    };
    all.push_back({{"card", offer.card},
                   {"limit_w", pair(offer.limit_w, 1)},
                   {"clock_mhz", pair(offer.clock_hz, 1e-6)},
                   {"lease_s", offer.lease_s}});
  }
  return all;
}

void print_status(const PrivilegesArguments& arguments) {
  privileges::Client client(arguments.socket_path());
  const auto status = client.status();
  if (!status.value) throw Unsupported(status.status.reason);
  const Json& cards = status.value->at("cards");
  if (arguments.json) {
    fmt::print("{}\n", Json{{"schema", "dfa-privileges/1"},
                            {"socket", arguments.socket_path()},
                            {"cards", cards},
                            {"yours", offers_json(client.offers())}}
                           .dump(2));
    return;
  }
  for (const Json& card : cards) {
    fmt::print("{}  {}  {}\n", card.at("card").get<std::string>(),
               card.at("name").get<std::string>(), lease_text(card.at("lease")));
    if (!card.at("trouble").is_null()) {
      fmt::print("  not put back yet: {}\n", card.at("trouble").get<std::string>());
    }
    for (const privileges::Offer& offer : client.offers()) {
      if (offer.card != card.at("card").get<std::string>()) continue;
      fmt::print("  you may have {}\n", levers_text(offer.limit_w, offer.clock_hz, offer.lease_s));
    }
  }
}

}  // namespace

void add_privileges(CLI::App& app, int&) {
  auto arguments = std::make_shared<PrivilegesArguments>();
  PrivilegesArguments& a = *arguments;
  CLI::App* command = app.add_subcommand(
      "privileges", "A daemon that lends power limits and clocks of cards to those who may ask");
  command->add_option("ACTION", a.action, "serve, check, status or unit")
      ->required()
      ->check(CLI::IsMember({"serve", "check", "status", "unit"}));
  command->add_option("--socket", a.socket, "where it listens (DFA_PRIVILEGES)");
  command->add_option("--allow", a.allow,
                      "serve, check: the file that says who may turn which levers of which card");
  command->add_option("--group", a.group,
                      "serve: the group that may connect, by name or number (the one it runs as)");
  command->add_flag("--json", a.json, "status: print JSON");
  command->footer(
      "serve: for the owner of the cards, as root. check: reads an --allow file. unit: prints the\n"
      "unit of systemd for this program.\n"
      "A line of it: CARD WHO LEVERS, as\n"
      "  0000:3b:00.0 group:ml limit:350:700W clock:900:1980MHz lease:2h\n\n"
      "Example: dfa privileges serve --allow /etc/dfa/privileges --group ml\n"
      "         dfa privileges status");
  command->callback([arguments] {
    require_used(*arguments);
    if (arguments->action == "serve") serve(*arguments);
    if (arguments->action == "check") print_check(*arguments);
    if (arguments->action == "status") print_status(*arguments);
    if (arguments->action == "unit") print_unit();
  });
}

}  // namespace dfa::cli
