#pragma once

// For small loops that tests spend most of their time in: a function marked so is compiled twice,
// and a processor with AVX2 takes the wider one. Neither fuses a product with a sum, so both give
// the same bits. clang 14 does not take it beside DFA_NOT_INSTRUMENTED; where the thread sanitizer
// instruments the dynamic linker's choice, g++ 12's programs crash at their start.
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define DFA_WIDER_VECTORS [[gnu::target_clones("avx2", "default")]]
#else
#define DFA_WIDER_VECTORS
#endif
