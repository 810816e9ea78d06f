#include "free_list.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace pinferry {

FreeList::FreeList(std::size_t capacity, std::size_t chunk, std::size_t alignment)
    : capacity_(0), chunk_(chunk), alignment_(alignment) {
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
        throw std::invalid_argument("alignment must be a power of two");
    }
    if (chunk == 0 || chunk % alignment != 0) {
        throw std::invalid_argument("chunk must be a positive multiple of the alignment");
    }
    capacity_ = capacity - capacity % alignment;
    for (std::size_t offset = 0; offset < capacity_;
         offset += std::min(chunk_, capacity_ - offset)) {
        insert({offset, std::min(chunk_, capacity_ - offset)});
    }
    free_bytes_ = capacity_;
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

std::optional<Range> FreeList::allocate_largest(std::size_t bytes) {
    const std::size_t size = rounded(bytes);
    if (size == 0) return Range{0, 0};
    if (by_size_.empty()) return std::nullopt;
    const auto found = std::prev(by_size_.end());
    return cut(found, std::min(size, found->first));
}

Range FreeList::cut(BySize::iterator found, std::size_t size) {
    const auto [found_size, offset] = *found;
    by_size_.erase(found);
    by_offset_.erase(offset);
    if (found_size > size) insert({offset + size, found_size - size});
    free_bytes_ -= size;
    return {offset, size};
}

void FreeList::insert(Range range) {
    by_offset_.emplace(range.offset, range.size);
    by_size_.emplace(range.size, range.offset);
}

void FreeList::release(Range range) {
    if (range.size == 0) return;
    if (range.size > capacity_ || range.offset > capacity_ - range.size) {
        throw std::logic_error("range lies outside the arena");
    }
    auto next = by_offset_.lower_bound(range.offset);
    auto previous = next == by_offset_.begin() ? by_offset_.end() : std::prev(next);
    const bool overlaps_next = next != by_offset_.end() && range.end() > next->first;
    const bool overlaps_previous =
        previous != by_offset_.end() && previous->first + previous->second > range.offset;
    if (overlaps_next || overlaps_previous) throw std::logic_error("range is already free");

    free_bytes_ += range.size;
    if (next != by_offset_.end() && range.end() == next->first && range.end() % chunk_ != 0) {
        range.size += next->second;
        by_size_.erase({next->second, next->first});
        by_offset_.erase(next);
    }
    if (previous != by_offset_.end() && previous->first + previous->second == range.offset &&
        range.offset % chunk_ != 0) {
        range = {previous->first, range.size + previous->second};
        by_size_.erase({previous->second, previous->first});
        by_offset_.erase(previous);
    }
    insert(range);
}

std::size_t FreeList::largest_free() const noexcept {
    return by_size_.empty() ? 0 : by_size_.rbegin()->first;
}

}  // namespace pinferry
