#pragma once

#include <string>
#include <vector>

#include "bench/result.h"

namespace dfa::bench {

// Facts about this machine and this build, for the head of a result file.
MachineFacts describe_machine(int threads);
GitState describe_source();

// The command line this process was started with, empty where the system does not tell.
std::vector<std::string> process_arguments();

// The backend that "auto" stands for on this machine. Throws Unsupported when there is none.
std::string default_backend();

}  // namespace dfa::bench
