#include "arena.hpp"

#include <algorithm>
#include <cstdint>
#include <new>
#include <numeric>
#include <thread>

#include "error.hpp"
#include "format_bytes.hpp"

namespace pinferry {
namespace {

constexpr std::size_t page_bytes = 4096;  // what every backend aligns a chunk to, at least

constexpr auto first_pause = std::chrono::microseconds(20);
constexpr auto longest_pause = std::chrono::microseconds(1000);
constexpr auto between_calls = std::chrono::milliseconds(50);

std::size_t saturating_sum(std::size_t a, std::size_t b) {
    return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

}  // namespace

void Arena::require_open() const {
    if (closed_) throw Error("ArenaClosed", "this arena is closed; make a new one");
}

void Arena::require_usable() const {
    device_->process().require_same_process("this arena");
    const std::lock_guard lock(mutex_);
    require_open();
}

void Arena::count_blocks(std::size_t blocks) noexcept {
    counters_.blocks += blocks;
    counters_.allocations += blocks;
    counters_.peak_bytes = std::max(counters_.peak_bytes, free_.capacity() - free_.free_bytes());
}

std::shared_ptr<Block> Arena::try_allocate(std::size_t bytes, std::size_t alignment) {
    device_->process().require_same_process("this arena");
    if (alignment == 0 || alignment > page_bytes || (alignment & (alignment - 1)) != 0) {
        throw Error("InvalidArgument", "an alignment is a power of two up to 4096 bytes, and " +
                                           std::to_string(alignment) + " is not");
    }
    reclaim_retired();
    std::optional<Range> range;
    {
        const std::lock_guard lock(mutex_);
        require_open();
        range = free_.allocate_aligned(bytes, alignment);
        if (!range) return nullptr;
        count_blocks(1);
    }
    return deal_one(*range, bytes);
}

std::shared_ptr<Block> Arena::allocate(std::size_t bytes, Timeout timeout, std::size_t alignment,
                                       const std::function<void()>& between) {
    std::shared_ptr<Block> block = try_allocate(bytes, alignment);
    if (block) return block;
    await(
        {{bytes}, true, alignment}, timeout,
        [&] {
            block = try_allocate(bytes, alignment);
            return block != nullptr;
        },
        between);
    return block;
}

std::vector<Blocks> Arena::allocate_extents(const std::vector<std::size_t>& sizes, Timeout timeout,
                                            const std::function<void()>& between) {
    std::optional<std::vector<Blocks>> dealt;
    await(
        {sizes}, timeout,
        [&] {
            dealt = try_allocate_extents(sizes);
            return dealt.has_value();
        },
        between);
    return std::move(*dealt);
}

std::optional<std::vector<Blocks>> Arena::try_allocate_extents(
    const std::vector<std::size_t>& sizes) {
    device_->process().require_same_process("this arena");
    reclaim_retired();
    Ranges found;
    {
        const std::lock_guard lock(mutex_);
        require_open();
        if (!find_ranges(sizes, found)) return std::nullopt;
    }
    return deal(sizes, found);
}

void Arena::await(const Request& request, Timeout timeout, const std::function<bool()>& attempt,
                  const std::function<void()>& between) {
    const auto start = std::chrono::steady_clock::now();
    auto called = start;
    std::chrono::nanoseconds pause = first_pause;
    while (!attempt()) {
        const bool late = timeout && std::chrono::steady_clock::now() - start >= *timeout;
        if (late || !may_fit_later(request)) refuse(request);
        std::this_thread::sleep_for(pause);
        if (between && std::chrono::steady_clock::now() - called >= between_calls) {
            between();
            called = std::chrono::steady_clock::now();
        }
        pause = std::min<std::chrono::nanoseconds>(pause * 2, longest_pause);
    }
}

bool Arena::find_ranges(const std::vector<std::size_t>& sizes, Ranges& found) {
    if (rounded_sum(sizes) > free_.free_bytes()) return false;
    std::size_t blocks = 0;
    try {
        found.assign(sizes.size(), {});
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            find_extents(sizes[i], found[i]);
            blocks += found[i].size();
        }
    } catch (...) {
        for (const auto& ranges : found) {
            for (const Range& range : ranges) put_back(range);
        }
        throw;
    }
    count_blocks(blocks);
    return true;
}

// The list has a place for each range before that is taken, so that none is taken and not listed.
void Arena::find_extents(std::size_t bytes, std::vector<Range>& found) {
    found.emplace_back();
    if (const auto range = free_.allocate(bytes)) {
        found.back() = *range;
        return;
    }
    for (std::size_t left = free_.rounded(bytes); left > 0; left -= found.back().size) {
        if (found.back().size > 0) found.emplace_back();
        found.back() = *free_.allocate_largest(left);
    }
}

// A range that the free list has no memory for waits among the retired, which need less, for the
// next attempt. If there is not even that, it stays out of use, which harms nobody.
void Arena::put_back(Range range) noexcept {
    try {
        try {
            free_.release(range);
        } catch (const std::bad_alloc&) {
            retired_.add(range, {});
            any_retired_.store(true, std::memory_order_relaxed);
        }
    } catch (const std::exception&) {
    }
}

std::vector<Blocks> Arena::deal(const std::vector<std::size_t>& sizes, const Ranges& ranges) {
    // Outside the lock: a block that dies here, because memory for the next one is short, takes it.
    std::vector<Blocks> dealt;
    std::size_t i = 0;
    std::size_t j = 0;
    try {
        dealt.resize(sizes.size());
        for (; i < sizes.size(); ++i) {
            std::size_t left = sizes[i];
            j = 0;
            dealt[i].reserve(ranges[i].size());  // a block that is made is kept
            for (; j < ranges[i].size(); ++j) {
                const std::size_t bytes = std::min(left, ranges[i][j].size);
                dealt[i].push_back(
                    std::make_shared<Block>(shared_from_this(), ranges[i][j], bytes));
                left -= bytes;
            }
        }
    } catch (...) {
        for (; i < sizes.size(); ++i, j = 0) {
            for (; j < ranges[i].size(); ++j) give_back(ranges[i][j], {});
        }
        throw;
    }
    return dealt;
}

std::shared_ptr<Block> Arena::deal_one(Range range, std::size_t bytes) {
    try {
        return std::make_shared<Block>(shared_from_this(), range, bytes);
    } catch (...) {
        give_back(range, {});
        throw;
    }
}

std::size_t Arena::rounded_sum(const std::vector<std::size_t>& sizes) const noexcept {
    std::size_t sum = 0;
    for (const std::size_t size : sizes) sum = saturating_sum(sum, free_.rounded(size));
    return sum;
}

bool Arena::may_fit_later(const Request& request) const {
    const auto& [sizes, contiguous, alignment] = request;
    const std::lock_guard lock(mutex_);
    if (retired_.empty()) return false;
    const auto too_large = [&](std::size_t size) {
        return free_.rounded(size) > std::min(free_.capacity(), chunk_bytes_);
    };
    if (contiguous && std::any_of(sizes.begin(), sizes.end(), too_large)) return false;
    if (rounded_sum(sizes) > free_.free_bytes() + retired_.bytes()) return false;
    return !contiguous || free_.rounded(sizes.front()) <= largest_hole_to_come(alignment);
}

std::size_t Arena::largest_hole_to_come(std::size_t alignment) const {
    std::vector<Range> holes = free_.ranges();
    for (const Range& range : retired_.ranges()) holes.push_back(range);
    std::sort(holes.begin(), holes.end(), [](Range a, Range b) { return a.offset < b.offset; });
    std::size_t largest = 0;
    Range hole;
    for (const Range& next : holes) {
        const bool joins = next.offset == hole.end() && next.offset % chunk_bytes_ != 0;
        hole = joins ? Range{hole.offset, hole.size + next.size} : next;
        const std::size_t lost =
            (hole.offset + alignment - 1) / alignment * alignment - hole.offset;
        if (lost < hole.size) largest = std::max(largest, hole.size - lost);
    }
    return largest;
}

void Arena::refuse(const Request& request) {
    const auto& [sizes, contiguous, alignment] = request;
    const std::size_t requested =
        std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}, saturating_sum);
    // Extents lie at multiples of the arena's own alignment, and of no other.
    const bool aligned = alignment > block_alignment;
    {
        const std::lock_guard lock(mutex_);
        require_open();  // closed meanwhile, which is why nothing will come
        ++counters_.failures;
    }
    const ArenaStats now = stats();
    std::string message = "the arena has no room for " + format_bytes(requested) +
                          (contiguous ? " in one piece" : "") +
                          (aligned ? " at a multiple of " + std::to_string(alignment) : "") + ": " +
                          format_bytes(now.free_bytes) + " of " + format_bytes(now.capacity_bytes) +
                          " free, largest piece " + format_bytes(now.largest_free_bytes) + ", " +
                          format_bytes(now.retired_bytes) + " still in flight. ";
    if (requested > now.max_capacity_bytes) {
        message += "Make the arena larger";
    } else if (contiguous && requested > chunk_bytes_) {
        message += "No block is larger than a chunk, " + format_bytes(chunk_bytes_) + ": " +
                   (aligned ? "" : "take several pieces (alloc_extents), or ") +
                   "make chunks larger";
    } else if (requested <= now.free_bytes + now.retired_bytes && now.retired_bytes > 0) {
        message += "Wait for the copies in flight (timeout=), or make the arena larger";
    } else if (requested <= now.free_bytes) {
        message += aligned ? "Free blocks first, or make the arena larger"
                           : "Take several pieces (alloc_extents), or free blocks first";
    } else {
        message += "Reload or free what it holds, or make the arena larger";
    }
    const auto field = [](std::size_t bytes) {
        return static_cast<std::int64_t>(std::min<std::size_t>(bytes, INT64_MAX));
    };
    throw Error("ArenaExhausted", message,
                {{"requested", field(requested)},
                 {"free", field(now.free_bytes)},
                 {"largest_free", field(now.largest_free_bytes)},
                 {"in_flight", field(now.retired_bytes)}});
}

void Arena::give_back(Range range, Events events) noexcept {
    if (device_->process().forked()) return;
    bool last = false;
    try {
        const std::lock_guard lock(mutex_);
        --counters_.blocks;
        last = closed_ && counters_.blocks == 0;
        if (events.empty()) {
            put_back(range);
        } else {
            retired_.add(range, events);
            any_retired_.store(true, std::memory_order_relaxed);
        }
    } catch (const std::exception&) {
        // No memory for the bookkeeping: the range stays out of use, which harms nobody. The memory
        // must not go while a copy runs that nobody remembers.
        leaked_ = leaked_ || !events.empty();
    }
    if (last) release_memory();
}

void Arena::reclaim_retired() noexcept {
    if (!any_retired_.load(std::memory_order_relaxed) || device_->process().forked()) return;
    try {
        // Asked outside the lock. The ranges stay where they are meanwhile, so that nobody misses
        // them.
        std::vector<Events> groups;
        {
            const std::lock_guard lock(mutex_);
            groups = retired_.groups();
        }
        const auto pending = [](const Events& events) {
            return std::any_of(events.begin(), events.end(),
                               [](const auto& event) { return !event->complete(); });
        };
        groups.erase(std::remove_if(groups.begin(), groups.end(), pending), groups.end());
        const std::lock_guard lock(mutex_);
        for (const Events& events : groups) {
            retired_.take(events, [this](Range range) { free_.release(range); });
        }
        any_retired_.store(!retired_.empty(), std::memory_order_relaxed);
    } catch (const std::exception&) {
        // No memory for the bookkeeping now: the ranges come back at a later call.
    }
}

}  // namespace pinferry
