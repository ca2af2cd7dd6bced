#pragma once

#include <string>

#include "base/descriptor.h"
#include "dfa/error.h"

namespace dfa::monitor {

// Whether listen_at() takes this text; else what it takes. Names are not looked up.
Verdict check_address(const std::string& address);

// A socket that listens and does not block. address: "127.0.0.1:9400", "[::1]:9400", a port alone
// for loopback; port 0 takes a free one. Throws InvalidArgument for another text, IoError where it
// cannot listen there.
Descriptor listen_at(const std::string& address);

// The address with the port that was taken.
std::string address_of(const Descriptor& listener, const std::string& address);

}  // namespace dfa::monitor
