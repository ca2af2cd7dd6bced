#pragma once

// For small loops that tests spend most of their time in, over ranges that the caller has from
// containers: sanitizers and counts of coverage leave a function marked so as the compiler has it.
#if defined(__clang__)
#define DFA_NOT_INSTRUMENTED [[clang::no_sanitize("address", "undefined", "thread")]]
#else
#define DFA_NOT_INSTRUMENTED \
  [[gnu::no_sanitize("address,undefined,thread"), gnu::no_profile_instrument_function]]
#endif
