#include "free_list.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace pinferry {

FreeList::FreeList(std::size_t capacity, std::size_t chunk, std::size_t alignment)
    : chunk_(chunk), alignment_(alignment) {
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
        throw std::invalid_argument("alignment must be a power of two");
    }
    if (chunk == 0 || chunk % alignment != 0) {
        throw std::invalid_argument("chunk must be a positive multiple of the alignment");
    }
    capacity -= capacity % alignment;
    for (std::size_t offset = 0; offset < capacity; offset += std::min(chunk_, capacity - offset)) {
        extend({offset, std::min(chunk_, capacity - offset)});
    }
}

void FreeList::extend(Range range) {
    const std::size_t end = end_;
    end_ = std::max(end_, range.end());
    try {
        release(range);
    } catch (...) {
        end_ = end;
        throw;
    }
    capacity_ += range.size;
}

bool FreeList::withdraw(Range range) noexcept {
    const auto hole = by_offset_.find(range.offset);
    if (hole == by_offset_.end() || hole->second != range.size) return false;
    erase(hole);
    free_bytes_ -= range.size;
    capacity_ -= range.size;
    return true;
}

std::size_t FreeList::rounded(std::size_t bytes) const noexcept {
    if (bytes > std::numeric_limits<std::size_t>::max() - (alignment_ - 1)) {
        return std::numeric_limits<std::size_t>::max() - (alignment_ - 1);
    }
    return (bytes + alignment_ - 1) & ~(alignment_ - 1);
}

std::optional<Range> FreeList::allocate(std::size_t bytes) {
    const std::size_t size = rounded(bytes);
    if (size == 0) return Range{0, 0};
    const auto found = by_size_.lower_bound({size, 0});
    if (found == by_size_.end()) return std::nullopt;
    return cut(found, size);
}

std::optional<Range> FreeList::allocate_aligned(std::size_t bytes, std::size_t alignment) {
    const std::size_t size = rounded(bytes);
    if (size == 0 || alignment <= alignment_) return allocate(bytes);
    const std::size_t slack = alignment - alignment_;
    if (size > std::numeric_limits<std::size_t>::max() - slack) return std::nullopt;
    constexpr int most_looked_at = 64;
    auto found = by_size_.lower_bound({size, 0});
    for (int looked_at = 0; found != by_size_.end(); ++found, ++looked_at) {
        if (looked_at == most_looked_at) found = by_size_.lower_bound({size + slack, 0});
        if (found == by_size_.end()) break;
        const auto [found_size, offset] = *found;
        const std::size_t start = (offset + alignment - 1) & ~(alignment - 1);
        if (start - offset > found_size - size) continue;
        const Range whole = cut(found, found_size);
        release({whole.offset, start - whole.offset});
        release({start + size, whole.end() - start - size});
        return Range{start, size};
    }
    return std::nullopt;
}

std::optional<Range> FreeList::allocate_largest(std::size_t bytes) {
    const std::size_t size = rounded(bytes);
    if (size == 0) return Range{0, 0};
    if (by_size_.empty()) return std::nullopt;
    const auto found = std::prev(by_size_.end());
    return cut(found, std::min(size, found->first));
}

Range FreeList::cut(BySize::iterator found, std::size_t size) {
    const auto [found_size, offset] = *found;
    const auto hole = by_offset_.find(offset);
    if (found_size == size) {
        erase(hole);
    } else {
        resize(hole, {offset + size, found_size - size});
    }
    free_bytes_ -= size;
    return {offset, size};
}

void FreeList::insert(ByOffset::iterator next, Range range) {
    const auto sized = by_size_.emplace(range.size, range.offset).first;
    try {
        by_offset_.emplace_hint(next, range.offset, range.size);
    } catch (...) {
        by_size_.erase(sized);
        throw;
    }
}

// The nodes of both trees move, so that nothing is allocated and nothing can fail.
void FreeList::resize(ByOffset::iterator hole, Range range) {
    auto sized = by_size_.extract({hole->second, hole->first});
    sized.value() = {range.size, range.offset};
    by_size_.insert(std::move(sized));
    hole->second = range.size;
    if (hole->first == range.offset) return;
    const auto next = std::next(hole);
    auto placed = by_offset_.extract(hole);
    placed.key() = range.offset;
    by_offset_.insert(next, std::move(placed));
}

void FreeList::erase(ByOffset::iterator hole) noexcept {
    by_size_.erase({hole->second, hole->first});
    by_offset_.erase(hole);
}

void FreeList::release(Range range) {
    if (range.size == 0) return;
    if (range.size > end_ || range.offset > end_ - range.size) {
        throw std::logic_error("range lies outside the arena");
    }
    const auto next = by_offset_.lower_bound(range.offset);
    const auto previous = next == by_offset_.begin() ? by_offset_.end() : std::prev(next);
    const bool has_next = next != by_offset_.end();
    const bool has_previous = previous != by_offset_.end();
    if ((has_next && range.end() > next->first) ||
        (has_previous && previous->first + previous->second > range.offset)) {
        throw std::logic_error("range is already free");
    }
    const std::size_t freed = range.size;
    const bool joins_next = has_next && range.end() == next->first && range.end() % chunk_ != 0;
    const bool joins_previous = has_previous &&
                                previous->first + previous->second == range.offset &&
                                range.offset % chunk_ != 0;
    if (joins_next) range.size += next->second;
    if (joins_previous) {
        if (joins_next) erase(next);
        resize(previous, {previous->first, previous->second + range.size});
    } else if (joins_next) {
        resize(next, range);
    } else {
        insert(next, range);
    }
    free_bytes_ += freed;
}

std::size_t FreeList::largest_free() const noexcept {
    return by_size_.empty() ? 0 : by_size_.rbegin()->first;
}

std::vector<Range> FreeList::ranges() const {
    std::vector<Range> all;
    all.reserve(by_offset_.size());
    for (const auto& [offset, size] : by_offset_) all.push_back({offset, size});
    return all;
}

}  // namespace pinferry
