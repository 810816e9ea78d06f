#include "arena.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <thread>
#include <unordered_map>

#include "error.hpp"
#include "format_bytes.hpp"

namespace pinferry {
namespace {

// A source off by 64 bytes costs a third of the H2D rate on PCIe 5.0; CUDA's allocators give 512.
constexpr std::size_t block_alignment = 512;

constexpr std::size_t page_bytes = 4096;
constexpr std::size_t largest_capacity = std::size_t{1} << 47;  // user space on x86-64 and arm64

constexpr auto first_pause = std::chrono::microseconds(20);
constexpr auto longest_pause = std::chrono::microseconds(1000);

std::size_t saturating_sum(std::size_t a, std::size_t b) {
    return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

}  // namespace

std::shared_ptr<Arena> Arena::create(std::shared_ptr<Device> device,
                                     const HostMemoryRequest& request) {
    device->process().require_same_process("this device");
    if (request.bytes > largest_capacity) {
        throw Error("InvalidSize",
                    format_bytes(request.bytes) + " cannot be addressed by a process");
    }
    if (request.chunk_bytes == 0 || request.chunk_bytes % page_bytes != 0) {
        throw Error("InvalidSize", "a chunk is a positive multiple of 4096 bytes, and " +
                                       std::to_string(request.chunk_bytes) + " is not");
    }
    device->release_due();  // pinned memory of arenas that died under a copy goes back first
    auto memory = device->make_host_memory(request);
    return std::shared_ptr<Arena>(new Arena(std::move(device), std::move(memory)));
}

Arena::Arena(std::shared_ptr<Device> device, std::unique_ptr<HostMemory> memory)
    : device_(std::move(device)),
      memory_(std::move(memory)),
      free_(memory_->size(), memory_->chunk_bytes(), block_alignment) {}

Arena::~Arena() {
    if (device_->process().forked()) {
        // The mapping does not exist here; its addresses may be somebody else's by now.
        static_cast<void>(memory_.release());
        return;
    }
    reclaim_retired();
    Events pending;
    for (Retired& entry : retired_) {
        pending.insert(pending.end(), entry.events.begin(), entry.events.end());
    }
    // A copy may be stuck behind its producer: the device takes the memory over, and nothing waits.
    Device* device = device_.get();
    // Held by the closure alone, so that it dies where the device's context is current.
    std::shared_ptr<HostMemory> memory = std::move(memory_);
    device->release_after(std::move(pending), [device, memory = std::move(memory)]() mutable {
        device->destroy_host_memory(std::move(memory));
    });
}

void Arena::require_usable() const {
    device_->process().require_same_process("this arena");
    const std::lock_guard lock(mutex_);
    if (closed_) throw Error("ArenaClosed", "this arena is closed; make a new one");
}

std::shared_ptr<Block> Arena::try_allocate(std::size_t bytes) {
    require_usable();
    reclaim_retired();
    Ranges found;
    if (!find_ranges({bytes}, true, found)) return nullptr;
    return deal({bytes}, found).front().front();
}

std::shared_ptr<Block> Arena::allocate(std::size_t bytes, Timeout timeout) {
    return deal({bytes}, await_ranges({bytes}, true, timeout)).front().front();
}

std::vector<Blocks> Arena::allocate_extents(const std::vector<std::size_t>& sizes,
                                            Timeout timeout) {
    return deal(sizes, await_ranges(sizes, false, timeout));
}

Arena::Ranges Arena::await_ranges(const std::vector<std::size_t>& sizes, bool contiguous,
                                  Timeout timeout) {
    const auto start = std::chrono::steady_clock::now();
    std::chrono::nanoseconds pause = first_pause;
    Ranges found;
    while (true) {
        require_usable();
        reclaim_retired();
        if (find_ranges(sizes, contiguous, found)) return found;
        const bool late = timeout && std::chrono::steady_clock::now() - start >= *timeout;
        if (late || !may_fit_later(sizes, contiguous)) refuse(sizes, contiguous);
        std::this_thread::sleep_for(pause);
        pause = std::min<std::chrono::nanoseconds>(pause * 2, longest_pause);
    }
}

bool Arena::find_ranges(const std::vector<std::size_t>& sizes, bool contiguous, Ranges& found) {
    const std::lock_guard lock(mutex_);
    found.assign(sizes.size(), {});
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        if (find_extents(sizes[i], contiguous, found[i])) continue;
        for (const auto& ranges : found) {
            for (const Range& range : ranges) free_.release(range);
        }
        return false;
    }
    for (const auto& ranges : found) {
        counters_.blocks += ranges.size();
        counters_.allocations += ranges.size();
    }
    counters_.peak_bytes = std::max(counters_.peak_bytes, free_.capacity() - free_.free_bytes());
    return true;
}

bool Arena::find_extents(std::size_t bytes, bool contiguous, std::vector<Range>& found) {
    if (const auto range = free_.allocate(bytes)) {
        found.push_back(*range);
        return true;
    }
    if (contiguous || free_.rounded(bytes) > free_.free_bytes()) return false;
    for (std::size_t left = free_.rounded(bytes); left > 0; left -= found.back().size) {
        found.push_back(*free_.allocate_largest(left));
    }
    return true;
}

std::vector<Blocks> Arena::deal(const std::vector<std::size_t>& sizes, const Ranges& ranges) {
    // Outside the lock: a block that dies here, because memory for the next one is short, takes it.
    std::vector<Blocks> dealt(sizes.size());
    std::size_t i = 0;
    std::size_t j = 0;
    try {
        for (; i < sizes.size(); ++i) {
            std::size_t left = sizes[i];
            dealt[i].reserve(ranges[i].size());  // a block that is made is kept
            for (j = 0; j < ranges[i].size(); ++j) {
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

bool Arena::may_fit_later(const std::vector<std::size_t>& sizes, bool contiguous) const {
    const std::lock_guard lock(mutex_);
    if (retired_bytes_ == 0) return false;
    std::size_t wanted = 0;
    for (const std::size_t size : sizes) {
        if (contiguous && size > std::min(free_.capacity(), memory_->chunk_bytes())) return false;
        wanted = saturating_sum(wanted, free_.rounded(size));
    }
    return wanted <= free_.free_bytes() + retired_bytes_;
}

void Arena::refuse(const std::vector<std::size_t>& sizes, bool contiguous) {
    const std::size_t requested =
        std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}, saturating_sum);
    {
        const std::lock_guard lock(mutex_);
        ++counters_.failures;
    }
    const ArenaStats now = stats();
    std::string message = "the arena has no room for " + format_bytes(requested) +
                          (contiguous ? " in one piece: " : ": ") + format_bytes(now.free_bytes) +
                          " of " + format_bytes(now.capacity_bytes) + " free, largest piece " +
                          format_bytes(now.largest_free_bytes) + ", " +
                          format_bytes(now.retired_bytes) + " still in flight. ";
    if (requested > now.capacity_bytes) {
        message += "Make the arena larger";
    } else if (requested <= now.free_bytes + now.retired_bytes && now.retired_bytes > 0) {
        message += "Wait for the copies in flight (timeout=), or make the arena larger";
    } else if (requested <= now.free_bytes) {
        message += "Take several pieces (alloc_extents), or free blocks first";
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
    try {
        const std::lock_guard lock(mutex_);
        --counters_.blocks;
        if (events.empty()) {
            free_.release(range);
        } else {
            retired_.push_back({range, std::move(events)});
            retired_bytes_ += range.size;
        }
    } catch (const std::exception&) {
        // No memory for the bookkeeping: the range stays out of use, which harms nobody.
    }
}

void Arena::reclaim_retired() noexcept {
    if (device_->process().forked()) return;
    try {
        // A batch of copies shares one event among thousands of blocks: each is asked once, and
        // outside the lock. The ranges stay where they are meanwhile, so that nobody misses them.
        std::unordered_map<std::shared_ptr<Event>, bool> complete;
        {
            const std::lock_guard lock(mutex_);
            for (const Retired& entry : retired_) {
                for (const auto& event : entry.events) complete.emplace(event, false);
            }
        }
        if (complete.empty()) return;
        for (auto& [event, done] : complete) done = event->complete();
        const auto pending = [&](const Retired& entry) {
            return std::any_of(entry.events.begin(), entry.events.end(), [&](const auto& event) {
                const auto asked = complete.find(event);
                return asked == complete.end() || !asked->second;
            });
        };
        const std::lock_guard lock(mutex_);
        const auto free = std::partition(retired_.begin(), retired_.end(), pending);
        for (auto entry = free; entry != retired_.end(); ++entry) {
            retired_bytes_ -= entry->range.size;
            free_.release(entry->range);
        }
        retired_.erase(free, retired_.end());
    } catch (const std::exception&) {
        // No memory for the bookkeeping now: the ranges come back at a later call.
    }
}

void Arena::close() noexcept {
    const std::lock_guard lock(mutex_);
    closed_ = true;
}

bool Arena::closed() const noexcept {
    const std::lock_guard lock(mutex_);
    return closed_;
}

ArenaStats Arena::stats() {
    reclaim_retired();
    const std::lock_guard lock(mutex_);
    ArenaStats now = counters_;
    now.capacity_bytes = free_.capacity();
    now.free_bytes = free_.free_bytes();
    now.largest_free_bytes = free_.largest_free();
    now.retired_bytes = retired_bytes_;
    now.used_bytes = now.capacity_bytes - now.free_bytes - now.retired_bytes;
    now.locked_bytes = memory_->locked_bytes();
    return now;
}

}  // namespace pinferry
