// Marks a function as part of a library's C interface. Its name must begin with `systolith_`: the
// linker keeps every other name private to the library, so that models loaded side by side never
// share a symbol.
#pragma once

#define SYSTOLITH_EXPORT extern "C" __attribute__((visibility("default")))
