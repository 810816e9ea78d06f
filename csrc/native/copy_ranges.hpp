#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pinferry {

// One contiguous copy: `bytes` at `host` and at the device's address `device`, whichever is the
// target. The host side lies within one chunk of memory from Device::make_host_memory().
struct CopyRange {
    std::byte* host = nullptr;
    std::uintptr_t device = 0;
    std::size_t bytes = 0;
};

// The ranges of one batch, as few as they can be: a range that continues the one before it on both
// sides is joined to it, and one of no bytes is left out. Neighbours are looked for in the order
// given only.
class CopyRanges {
  public:
    explicit CopyRanges(std::size_t at_most) { list_.reserve(at_most); }

    // `chunk` is the first byte of the chunk that holds the host side, `allocation` a number for
    // the device memory that holds the other. The driver refuses a copy from one chunk into the
    // next, which are registered one by one, and from one allocation into the next, even where
    // their addresses touch.
    void add(const CopyRange& range, const std::byte* chunk, std::size_t allocation);

    const std::vector<CopyRange>& list() const noexcept { return list_; }
    std::size_t bytes() const noexcept { return bytes_; }

  private:
    std::vector<CopyRange> list_;
    std::size_t bytes_ = 0;
    const std::byte* last_chunk_ = nullptr;  // of list_.back(), as the next
    std::size_t last_allocation_ = 0;
};

}  // namespace pinferry
