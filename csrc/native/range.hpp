#pragma once

#include <cstddef>

namespace pinferry {

// A contiguous range of an arena, in bytes from its start.
struct Range {
    std::size_t offset = 0;
    std::size_t size = 0;

    std::size_t end() const noexcept { return offset + size; }
    bool operator==(const Range& other) const noexcept {
        return offset == other.offset && size == other.size;
    }
};

}  // namespace pinferry
