#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device.hpp"
#include "free_list.hpp"
#include "retired_ranges.hpp"

namespace pinferry {

struct ArenaStats {
    std::size_t capacity_bytes = 0;      // of the chunks that are made
    std::size_t max_capacity_bytes = 0;  // of all chunks
    std::size_t used_bytes = 0;          // held by blocks
    std::size_t peak_bytes = 0;          // largest used + retired so far
    std::size_t free_bytes = 0;
    std::size_t largest_free_bytes = 0;
    std::size_t retired_bytes = 0;  // freed, but a copy may still run
    std::size_t locked_bytes = 0;   // pinned by the driver
    std::size_t blocks = 0;
    std::size_t allocations = 0;  // blocks dealt out so far
    std::size_t failures = 0;     // requests refused by an error so far
};

// A part of an arena's address space and what it is.
struct Region {
    enum class Kind { used, free, retired, absent, making };
    Kind kind = Kind::absent;
    Range range;
};

class Block;
using Blocks = std::vector<std::shared_ptr<Block>>;
using Timeout = std::optional<std::chrono::nanoseconds>;

// Host memory made in chunks and dealt out as blocks. A block freed while a copy still uses it is
// *retired*: its range comes back when those copies are complete, whatever order they end in.
// Any thread may call anything. No driver call is made under the lock.
class Arena : public std::enable_shared_from_this<Arena> {
  public:
    // Blocks the host while the first chunks are made: all of them or, with an error, none.
    static std::shared_ptr<Arena> create(std::shared_ptr<Device> device,
                                         const HostMemoryRequest& request);
    ~Arena();

    // One contiguous block, or nothing. Never waits. `alignment` is a power of two up to 4096.
    // Throws Error("ArenaClosed") or Error("InvalidArgument").
    std::shared_ptr<Block> try_allocate(std::size_t bytes, std::size_t alignment = 1);

    // One contiguous block. Where too little is free, waits up to `timeout` for retired ranges
    // (nothing: for as long as it takes), and throws Error("ArenaExhausted") if even all of them
    // would not do or none came back in time.
    // `between` is called from time to time while it waits; what it throws ends the wait.
    std::shared_ptr<Block> allocate(std::size_t bytes, Timeout timeout, std::size_t alignment = 1,
                                    const std::function<void()>& between = {});

    // For each size as few blocks as hold it: one where a free range is large enough, several
    // otherwise, so that it succeeds whenever the free bytes suffice in all. All sizes or none.
    // Waits and throws as allocate does.
    std::vector<Blocks> allocate_extents(const std::vector<std::size_t>& sizes, Timeout timeout,
                                         const std::function<void()>& between = {});
    // The same, or nothing. Never waits.
    std::optional<std::vector<Blocks>> try_allocate_extents(const std::vector<std::size_t>& sizes);

    // Whether chunks that are not made yet would make room for a request that finds none.
    // A patient request also waits for what is retired.
    bool would_fit_after_growth(const std::vector<std::size_t>& sizes, bool contiguous,
                                bool patient) const;
    // The size of the chunk that make_chunk() would make; 0 where all are made.
    std::size_t next_chunk_bytes() const;
    // Makes the first chunk that is not there; false where all are, or when the arena was closed
    // meanwhile. Blocks the host.
    // Throws Error("RegistrationFailed") or Error("HostMemoryLimit"), and changes nothing.
    bool make_chunk();
    // Drops chunks in which no byte is used, the last ones first, as long as `keep` bytes remain.
    // Returns how many bytes went. A driver waits until its device is idle: so does this.
    std::size_t trim(std::size_t keep);

    // No more blocks from now on. Memory goes back at once or, where blocks live, with the last of
    // them. Where a copy still uses it, it goes back once that has ended and this arena is asked
    // for its statistics, or another one is made or dropped: nothing waits for a copy that is
    // stuck. A driver waits until its device is idle.
    // Without `force`, does nothing and returns false where blocks live.
    bool close(bool force = true) noexcept;
    bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }

    ArenaStats stats();
    // Everything, by offset, without gaps within a chunk.
    std::vector<Region> layout();
    // How the memory is made, for people.
    std::string describe() const;
    const std::shared_ptr<Device>& device() const noexcept { return device_; }
    const HostMemory& memory() const noexcept { return *memory_; }

  private:
    friend class Block;
    struct Chunk {
        enum class State { absent, making, made, dropping };
        Range range;
        State state = State::absent;
    };

    Arena(std::shared_ptr<Device> device, const HostMemoryRequest& request);

    using Ranges = std::vector<std::vector<Range>>;
    struct Request {
        std::vector<std::size_t> sizes;
        bool contiguous = false;
        std::size_t alignment = 1;  // of a contiguous one
    };

    // Those below with mutex_ held.
    void require_open() const;
    void count_blocks(std::size_t blocks) noexcept;
    bool find_ranges(const std::vector<std::size_t>& sizes, Ranges& found);
    // The bytes must be free.
    void find_extents(std::size_t bytes, std::vector<Range>& found);
    void put_back(Range range) noexcept;
    std::size_t rounded_sum(const std::vector<std::size_t>& sizes) const noexcept;
    // What the largest block at a multiple of `alignment` will be when every retired range is back.
    std::size_t largest_hole_to_come(std::size_t alignment) const;

    // Those below without.
    void require_usable() const;
    void await(const Request& request, Timeout timeout, const std::function<bool()>& attempt,
               const std::function<void()>& between);
    std::vector<Blocks> deal(const std::vector<std::size_t>& sizes, const Ranges& ranges);
    std::shared_ptr<Block> deal_one(Range range, std::size_t bytes);
    void reclaim_retired() noexcept;
    bool may_fit_later(const Request& request) const;
    [[noreturn]] void refuse(const Request& request);
    std::size_t drop(const std::vector<Chunk*>& chunks) noexcept;
    void release_memory() noexcept;

    // Called by a dying block. Never throws.
    void give_back(Range range, Events events) noexcept;

    std::shared_ptr<Device> device_;
    std::shared_ptr<HostMemory> memory_;
    std::size_t chunk_bytes_;
    mutable std::mutex mutex_;
    std::vector<Chunk> chunks_;             // guarded by mutex_, but for their ranges
    FreeList free_;                         // guarded by mutex_
    RetiredRanges retired_;                 // guarded by mutex_; with the ranges being polled
    ArenaStats counters_;                   // guarded by mutex_: only what cannot be derived
    std::atomic<bool> closed_{false};       // written under mutex_
    std::atomic<bool> leaked_{false};       // the driver did not give a chunk up
    std::atomic<bool> any_retired_{false};  // a hint, so that most calls lock once
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
    // First byte of the chunk that holds the range: no copy may leave that chunk.
    const std::byte* chunk() const noexcept;
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
