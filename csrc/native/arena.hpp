#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device.hpp"
#include "free_list.hpp"

namespace pinferry {

struct ArenaStats {
    std::size_t capacity_bytes = 0;
    std::size_t used_bytes = 0;  // held by blocks
    std::size_t peak_bytes = 0;  // largest used + retired so far
    std::size_t free_bytes = 0;
    std::size_t largest_free_bytes = 0;
    std::size_t retired_bytes = 0;  // freed, but a copy may still run
    std::size_t locked_bytes = 0;   // pinned by the driver
    std::size_t blocks = 0;
    std::size_t allocations = 0;  // blocks dealt out so far
    std::size_t failures = 0;     // requests refused by an error so far
};

class Block;
using Blocks = std::vector<std::shared_ptr<Block>>;
using Timeout = std::optional<std::chrono::nanoseconds>;

// Host memory made once and dealt out as blocks. A block freed while a copy still uses it is
// *retired*: its range comes back when those copies are complete, whatever order they end in.
// Any thread may call anything. No driver call is made under the lock.
class Arena : public std::enable_shared_from_this<Arena> {
  public:
    // Blocks the host while the memory is made.
    static std::shared_ptr<Arena> create(std::shared_ptr<Device> device,
                                         const HostMemoryRequest& request);
    ~Arena();

    // One contiguous block, or nothing. Never waits. Throws Error("ArenaClosed").
    std::shared_ptr<Block> try_allocate(std::size_t bytes);

    // One contiguous block. Where too little is free, waits up to `timeout` for retired ranges
    // (nothing: for as long as it takes), and throws Error("ArenaExhausted") if even all of them
    // would not do or none came back in time.
    std::shared_ptr<Block> allocate(std::size_t bytes, Timeout timeout);

    // For each size as few blocks as hold it: one where a free range is large enough, several
    // otherwise, so that it succeeds whenever the free bytes suffice in all. All sizes or none.
    // Waits and throws as allocate does.
    std::vector<Blocks> allocate_extents(const std::vector<std::size_t>& sizes, Timeout timeout);

    // No more blocks from now on. Memory goes back when the last block and view are gone.
    void close() noexcept;
    bool closed() const noexcept;

    ArenaStats stats();
    const std::shared_ptr<Device>& device() const noexcept { return device_; }
    const HostMemory& memory() const noexcept { return *memory_; }

  private:
    friend class Block;
    struct Retired {
        Range range;
        Events events;
    };

    Arena(std::shared_ptr<Device> device, std::unique_ptr<HostMemory> memory);

    using Ranges = std::vector<std::vector<Range>>;

    void require_usable() const;
    bool find_ranges(const std::vector<std::size_t>& sizes, bool contiguous, Ranges& found);
    bool find_extents(std::size_t bytes, bool contiguous,
                      std::vector<Range>& found);  // mutex_ held
    Ranges await_ranges(const std::vector<std::size_t>& sizes, bool contiguous, Timeout timeout);
    std::vector<Blocks> deal(const std::vector<std::size_t>& sizes, const Ranges& ranges);
    void reclaim_retired() noexcept;
    bool may_fit_later(const std::vector<std::size_t>& sizes, bool contiguous) const;
    [[noreturn]] void refuse(const std::vector<std::size_t>& sizes, bool contiguous);

    // Called by a dying block. Never throws.
    void give_back(Range range, Events events) noexcept;

    std::shared_ptr<Device> device_;
    std::unique_ptr<HostMemory> memory_;
    mutable std::mutex mutex_;
    FreeList free_;                  // guarded by mutex_
    std::vector<Retired> retired_;   // guarded by mutex_
    std::size_t retired_bytes_ = 0;  // guarded by mutex_; with the ranges being polled
    ArenaStats counters_;            // guarded by mutex_: only what cannot be derived
    bool closed_ = false;            // guarded by mutex_
};

// One contiguous range of an arena, held for as long as the block lives. It holds its arena.
class Block {
  public:
    Block(std::shared_ptr<Arena> arena, Range range, std::size_t bytes);
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    std::byte* data() const noexcept { return arena_->memory().address(range_.offset); }
    std::size_t bytes() const noexcept { return bytes_; }  // as asked for; the range is rounded up
    std::size_t offset() const noexcept { return range_.offset; }
    const std::shared_ptr<Arena>& arena() const noexcept { return arena_; }

    // A copy that touches the range: it is not dealt out again before that copy is complete.
    void add_use(std::shared_ptr<Event> event);
    // The uses that are not known to be complete.
    Events pending_uses() const;

  private:
    std::shared_ptr<Arena> arena_;
    Range range_;
    std::size_t bytes_;
    mutable std::mutex mutex_;
    Events uses_;  // guarded by mutex_
};

}  // namespace pinferry
