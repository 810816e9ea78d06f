#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "copy_ranges.hpp"
#include "device.hpp"

namespace pinferry {

// One entry of the table that csrc/kernels/gather.cu works through; it declares the same.
struct CopyUnit {
    std::uint64_t source;
    std::uint64_t target;
    std::uint64_t bytes;
};
static_assert(sizeof(CopyUnit) == 24);

// Ranges are cut to at most this, so that the warps share the work evenly. Two rounds of a warp; a
// multiple of 16, so that the parts of an aligned range are aligned.
constexpr std::size_t unit_bytes = 8192;

// Entries that `ranges` take.
std::size_t count_units(const std::vector<CopyRange>& ranges) noexcept;

// Writes them to `table`, which has room for so many.
void write_units(Direction direction, const std::vector<CopyRange>& ranges,
                 CopyUnit* table) noexcept;

}  // namespace pinferry
