// Filling the API's table of functions; each .cpp file adds its own functions.
#pragma once

#include <exception>
#include <new>

#include "api.hpp"
#include "objects.hpp"

namespace systolith::pjrt {

// Wraps a function for the table. JAX is compiled without exceptions, so none may escape from it.
template <auto function>
struct Guarded;

template <typename Args, Error* (*function)(Args*)>
struct Guarded<function> {
    static Error* call(Args* args) noexcept {
        try {
            return function(args);
        } catch (const std::bad_alloc&) {
            return refuse(kResourceExhausted, "the host has no memory left");
        } catch (const std::exception& error) {
            return refuse(kInternal, error.what());
        }
    }
};

// Functions on errors return nothing and allocate no memory, so they cannot throw.
template <typename Args, void (*function)(Args*)>
struct Guarded<function> {
    static void call(Args* args) noexcept { function(args); }
};

// Adds a function to the table.
template <auto function>
void put(Api& api, Index index) {
    api.functions[index] = reinterpret_cast<Function>(Guarded<function>::call);
}

void add_client(Api& api);
void add_buffers(Api& api);
void add_executables(Api& api);

}  // namespace systolith::pjrt
