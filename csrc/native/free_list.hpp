#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "range.hpp"

namespace pinferry {

// Free ranges of an arena: best fit, coalescing, offsets only. It never touches the memory it deals
// out and does not lock. Offsets and sizes are multiples of `alignment`; no range crosses a
// multiple of `chunk` (a copy across two registrations is refused by the driver). allocate and
// release cost O(log n) in the number of free ranges, and allocate no memory where a range only
// shrinks or grows.
class FreeList {
  public:
    // `alignment` is a power of two and divides `chunk`; throws std::invalid_argument otherwise.
    // All of [0, capacity) is free; `capacity` is rounded down to the alignment.
    FreeList(std::size_t capacity, std::size_t chunk, std::size_t alignment);

    // More memory: `range` lies in one chunk, of which nothing was there. Throws std::logic_error
    // if some of it is free already.
    void extend(Range range);
    // Takes away what extend() gave. False, changing nothing, unless all of it is free.
    bool withdraw(Range range) noexcept;

    // The smallest free range that holds `bytes`, cut to size. Nothing if there is none.
    // Zero bytes give a range of size zero.
    std::optional<Range> allocate(std::size_t bytes);
    // The same, for an offset that is a multiple of `alignment`, a power of two. Of holes that are
    // large enough but badly placed it looks at a few, then takes one that fits wherever it begins.
    std::optional<Range> allocate_aligned(std::size_t bytes, std::size_t alignment);

    // The largest free range, cut to at most `bytes`. Nothing if no byte is free.
    std::optional<Range> allocate_largest(std::size_t bytes);

    // Gives a range back. Throws std::logic_error, changing nothing, if any byte of it is free.
    void release(Range range);

    std::size_t capacity() const noexcept { return capacity_; }
    std::size_t free_bytes() const noexcept { return free_bytes_; }
    std::size_t largest_free() const noexcept;
    std::size_t free_ranges() const noexcept { return by_offset_.size(); }
    // Every free range, by offset.
    std::vector<Range> ranges() const;

    // `bytes` rounded up to the alignment; saturates instead of wrapping.
    std::size_t rounded(std::size_t bytes) const noexcept;

  private:
    using BySize = std::set<std::pair<std::size_t, std::size_t>>;  // (size, offset)
    using ByOffset = std::map<std::size_t, std::size_t>;           // offset -> size

    void insert(ByOffset::iterator next, Range range);
    void resize(ByOffset::iterator hole, Range range);
    void erase(ByOffset::iterator hole) noexcept;
    Range cut(BySize::iterator found, std::size_t size);

    std::size_t capacity_ = 0;
    std::size_t end_ = 0;  // where the last memory ends
    std::size_t chunk_;
    std::size_t alignment_;
    std::size_t free_bytes_ = 0;
    ByOffset by_offset_;
    BySize by_size_;
};

}  // namespace pinferry
