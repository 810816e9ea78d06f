#include "replay.hpp"

#include <algorithm>
#include <stdexcept>

namespace pinferry {
namespace {

using Ranges = std::vector<Range>;

void give_back(FreeList& list, Ranges& ranges) {
    for (const Range& range : ranges) list.release(range);
    ranges.clear();
}

// All of `bytes` or nothing.
bool take(FreeList& list, std::size_t bytes, bool extents, Ranges& ranges) {
    if (const auto whole = list.allocate(bytes)) {
        ranges.push_back(*whole);
        return true;
    }
    if (!extents) return false;
    for (std::size_t left = list.rounded(bytes); left > 0; left -= ranges.back().size) {
        const auto piece = list.allocate_largest(left);
        if (!piece) {
            give_back(list, ranges);
            return false;
        }
        ranges.push_back(*piece);
    }
    return true;
}

}  // namespace

ReplayOutcome replay_storages(FreeList& list, const std::vector<std::size_t>& sizes,
                              const std::vector<std::size_t>& toggles, bool extents) {
    const auto is_index = [&](std::size_t entry) { return entry < sizes.size(); };
    if (!std::all_of(toggles.begin(), toggles.end(), is_index)) {
        throw std::out_of_range("a toggle names no storage");
    }
    ReplayOutcome outcome;
    std::vector<Ranges> held(sizes.size());
    std::vector<bool> away(sizes.size());
    std::size_t bytes = 0;
    std::size_t rounded_bytes = 0;
    for (const std::size_t entry : toggles) {
        if (away[entry]) {
            give_back(list, held[entry]);
            bytes -= sizes[entry];
            rounded_bytes -= list.rounded(sizes[entry]);
        } else {
            const bool suffices = list.rounded(sizes[entry]) <= list.free_bytes();
            const bool taken = take(list, sizes[entry], extents, held[entry]);
            ++outcome.requests;
            if (suffices && !taken) ++outcome.failures;
            for (const Range& range : held[entry]) {
                outcome.highest_end = std::max(outcome.highest_end, range.end());
            }
            bytes += sizes[entry];
            rounded_bytes += list.rounded(sizes[entry]);
            outcome.peak_bytes = std::max(outcome.peak_bytes, bytes);
            outcome.peak_rounded_bytes = std::max(outcome.peak_rounded_bytes, rounded_bytes);
        }
        away[entry] = !away[entry];
    }
    for (Ranges& ranges : held) give_back(list, ranges);
    return outcome;
}

}  // namespace pinferry
