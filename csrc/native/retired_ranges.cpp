#include "retired_ranges.hpp"

#include <algorithm>

namespace pinferry {

void RetiredRanges::add(Range range, Events events) {
    std::sort(events.begin(), events.end());
    groups_[std::move(events)].push_back(range);
    bytes_ += range.size;
}

std::vector<Events> RetiredRanges::groups() const {
    std::vector<Events> groups;
    groups.reserve(groups_.size());
    for (const auto& group : groups_) groups.push_back(group.first);
    return groups;
}

void RetiredRanges::take(const Events& events, const std::function<void(Range)>& release) {
    const auto group = groups_.find(events);
    if (group == groups_.end()) return;
    for (auto& ranges = group->second; !ranges.empty(); ranges.pop_back()) {
        release(ranges.back());
        bytes_ -= ranges.back().size;
    }
    groups_.erase(group);
}

std::vector<Range> RetiredRanges::ranges() const {
    std::vector<Range> all;
    for (const auto& group : groups_) {
        all.insert(all.end(), group.second.begin(), group.second.end());
    }
    std::sort(all.begin(), all.end(), [](Range a, Range b) { return a.offset < b.offset; });
    return all;
}

Events RetiredRanges::events() const {
    Events all;
    for (const auto& group : groups_) {
        all.insert(all.end(), group.first.begin(), group.first.end());
    }
    return all;
}

}  // namespace pinferry
