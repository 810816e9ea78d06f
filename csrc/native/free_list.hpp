#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "range.hpp"
#include "sorted_pairs.hpp"

namespace pinferry {

// Free ranges of an arena: best fit, coalescing, offsets only. It never touches the memory it deals
// out and does not lock. Offsets and sizes are multiples of `alignment`; no range crosses a
// multiple of `chunk` (a copy across two registrations is refused by the driver). allocate and
// release search among the free ranges, in O(log n), and change nothing where they throw.
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
    // large enough but badly placed it looks at a few, then takes one that fits wherever it begins;
    // where there is none of those it looks at all of them, in O(n), before it finds nothing.
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
    using Position = SortedPairs::Position;

    Range hole(Position position) const noexcept;
    void reserve(std::size_t ranges);
    void insert(Range range) noexcept;
    void erase(Position hole) noexcept;
    void resize(Position hole, Range range) noexcept;
    Range cut(Position found, std::size_t size);

    std::size_t capacity_ = 0;
    std::size_t end_ = 0;  // where the last memory ends
    std::size_t chunk_;
    std::size_t alignment_;
    std::size_t free_bytes_ = 0;
    SortedPairs by_offset_;  // (offset, size)
    SortedPairs by_size_;    // (size, offset)
};

}  // namespace pinferry
