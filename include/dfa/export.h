#pragma once

// What users of the shared library may call; everything else stays hidden in it.
#define DFA_API __attribute__((visibility("default")))
