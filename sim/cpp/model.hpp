// What a verilated model's own C++ and the files linked into its library share.
#pragma once

// Marks a function as part of the library's C interface. Its name must begin with `systolith_`:
// the linker keeps every other name private to the library, so that models loaded side by side
// never share a symbol.
#define SYSTOLITH_EXPORT extern "C" __attribute__((visibility("default")))
