#include "free_list.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace pinferry {

using Entry = SortedPairs::Entry;

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
    const Position hole = by_offset_.lower_bound({range.offset, range.size});
    if (hole == by_offset_.end() || !(by_offset_[hole] == Entry{range.offset, range.size})) {
        return false;
    }
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
    const Position found = by_size_.lower_bound({size, 0});
    if (found == by_size_.end()) return std::nullopt;
    return cut(found, size);
}

std::optional<Range> FreeList::allocate_aligned(std::size_t bytes, std::size_t alignment) {
    const std::size_t size = rounded(bytes);
    if (size == 0 || alignment <= alignment_) return allocate(bytes);
    const std::size_t slack = alignment - alignment_;
    if (size > std::numeric_limits<std::size_t>::max() - slack) return std::nullopt;
    const auto start_in = [&](Position hole) {
        return (by_size_[hole].second + alignment - 1) & ~(alignment - 1);
    };
    const auto fits = [&](Position hole) {
        const auto [hole_size, offset] = by_size_[hole];
        return start_in(hole) - offset <= hole_size - size;
    };
    const Position roomy = by_size_.lower_bound({size + slack, 0});  // fits, wherever it begins
    constexpr int most_looked_at = 64;
    Position found = by_size_.lower_bound({size, 0});
    for (int looked_at = 1; found != roomy && !fits(found); ++looked_at) {
        const bool enough = looked_at >= most_looked_at && roomy != by_size_.end();
        found = enough ? roomy : by_size_.next(found);
    }
    if (found == by_size_.end()) return std::nullopt;
    reserve(2);
    const std::size_t start = start_in(found);
    const Range whole = cut(found, by_size_[found].first);
    release({whole.offset, start - whole.offset});
    release({start + size, whole.end() - start - size});
    return Range{start, size};
}

std::optional<Range> FreeList::allocate_largest(std::size_t bytes) {
    const std::size_t size = rounded(bytes);
    if (size == 0) return Range{0, 0};
    if (by_size_.empty()) return std::nullopt;
    const Position found = by_size_.previous(by_size_.end());
    return cut(found, std::min(size, by_size_[found].first));
}

Range FreeList::cut(Position found, std::size_t size) {
    const auto [found_size, offset] = by_size_[found];
    const Position hole = by_offset_.lower_bound({offset, 0});
    if (found_size == size) {
        by_size_.erase(found);
        by_offset_.erase(hole);
    } else {
        by_size_.reserve(1);
        by_size_.erase(found);
        by_size_.insert({found_size - size, offset + size});
        by_offset_.replace(hole, {offset + size, found_size - size});
    }
    free_bytes_ -= size;
    return {offset, size};
}

void FreeList::reserve(std::size_t ranges) {
    by_offset_.reserve(ranges);
    by_size_.reserve(ranges);
}

void FreeList::insert(Range range) noexcept {
    by_offset_.insert({range.offset, range.size});
    by_size_.insert({range.size, range.offset});
}

void FreeList::erase(Position hole) noexcept {
    const auto [offset, size] = by_offset_[hole];
    by_size_.erase(by_size_.lower_bound({size, offset}));
    by_offset_.erase(hole);
}

// A hole that grows to a side stays between its neighbours.
void FreeList::resize(Position hole, Range range) noexcept {
    const auto [offset, size] = by_offset_[hole];
    by_size_.erase(by_size_.lower_bound({size, offset}));
    by_size_.insert({range.size, range.offset});
    by_offset_.replace(hole, {range.offset, range.size});
}

void FreeList::release(Range range) {
    if (range.size == 0) return;
    if (range.size > end_ || range.offset > end_ - range.size) {
        throw std::logic_error("range lies outside the arena");
    }
    const Position after = by_offset_.lower_bound({range.offset, 0});
    const bool has_next = after != by_offset_.end();
    const bool has_previous = after != by_offset_.begin();
    const Position before = has_previous ? by_offset_.previous(after) : after;
    const Range next = has_next ? hole(after) : Range{};
    const Range previous = has_previous ? hole(before) : Range{};
    if ((has_next && range.end() > next.offset) ||
        (has_previous && previous.end() > range.offset)) {
        throw std::logic_error("range is already free");
    }
    reserve(1);
    const bool joins_next = has_next && range.end() == next.offset && range.end() % chunk_ != 0;
    const bool joins_previous =
        has_previous && previous.end() == range.offset && range.offset % chunk_ != 0;
    if (joins_next && joins_previous) {
        resize(before, {previous.offset, previous.size + range.size + next.size});
        erase(after);
    } else if (joins_next) {
        resize(after, {range.offset, range.size + next.size});
    } else if (joins_previous) {
        resize(before, {previous.offset, previous.size + range.size});
    } else {
        insert(range);
    }
    free_bytes_ += range.size;
}

Range FreeList::hole(Position position) const noexcept {
    const auto [offset, size] = by_offset_[position];
    return {offset, size};
}

std::size_t FreeList::largest_free() const noexcept {
    return by_size_.empty() ? 0 : by_size_[by_size_.previous(by_size_.end())].first;
}

std::vector<Range> FreeList::ranges() const {
    std::vector<Range> all;
    all.reserve(by_offset_.size());
    for (Position at = by_offset_.begin(); at != by_offset_.end(); at = by_offset_.next(at)) {
        all.push_back(hole(at));
    }
    return all;
}

}  // namespace pinferry
