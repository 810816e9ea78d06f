#pragma once

#include <cstddef>

#include "device.hpp"

namespace pinferry {

// Bytes that lie in one piece on both sides.
struct CopyRange {
    std::byte* host = nullptr;
    Address device = 0;
    std::size_t bytes = 0;
};

}  // namespace pinferry
