// How the API's table is filled; each file adds its part.
#pragma once

#include "api.hpp"
#include "objects.hpp"

namespace systolith::pjrt {

template <typename Result, typename Args>
void put(Api& api, Index index, Result (*function)(Args*)) {
    api.functions[index] = reinterpret_cast<Function>(function);
}

void add_client(Api& api);
void add_buffers(Api& api);
void add_executables(Api& api);

}  // namespace systolith::pjrt
