#pragma once

#include <cstddef>
#include <vector>

#include "free_list.hpp"

namespace pinferry {

struct ReplayOutcome {
    std::size_t highest_end = 0;         // the end of the highest range that was ever taken
    std::size_t peak_bytes = 0;          // the most that was asked for at one time
    std::size_t peak_rounded_bytes = 0;  // the same, each size rounded up to the alignment
    std::size_t requests = 0;
    std::size_t failures = 0;  // requests refused although the bytes sufficed in all
};

// Plays the coming and going of storages on `list`: each entry of `toggles` takes room for
// sizes[entry], or gives it back if it was taken. With `extents` a storage may be in pieces, as
// Arena::allocate_extents deals them out; without, it is one range. What was refused counts as
// taken, with nothing to give back. What is left at the end is given back.
// Throws std::out_of_range, changing nothing, if an entry is no index of `sizes`.
ReplayOutcome replay_storages(FreeList& list, const std::vector<std::size_t>& sizes,
                              const std::vector<std::size_t>& toggles, bool extents);

}  // namespace pinferry
