// The life of an arena's memory: how chunks come and go, and what lies where.

#include <algorithm>

#include "arena.hpp"
#include "blocking.hpp"
#include "error.hpp"

namespace pinferry {
namespace {

using Kind = Region::Kind;

}  // namespace

std::shared_ptr<Arena> Arena::create(std::shared_ptr<Device> device,
                                     const HostMemoryRequest& request) {
    device->process().require_same_process("this device");
    if (request.layout.chunks.empty() || request.at_once < 1 ||
        request.at_once > request.layout.chunks.size()) {
        throw Error("InvalidSize", "an arena has at least one chunk of 512 bytes or more");
    }
    device->release_due();  // pinned memory of arenas that died under a copy goes back first
    return std::shared_ptr<Arena>(new Arena(std::move(device), request));
}

Arena::Arena(std::shared_ptr<Device> device, const HostMemoryRequest& request)
    : device_(std::move(device)),
      chunk_bytes_(request.layout.chunk_bytes),
      free_(0, request.layout.chunk_bytes, block_alignment) {
    chunks_.reserve(request.layout.chunks.size());
    for (const Range& range : request.layout.chunks) {
        chunks_.push_back({range, Chunk::State::absent});
        counters_.max_capacity_bytes += range.size;
    }
    for (std::size_t i = 0; i < request.at_once; ++i) {
        chunks_[i].state = Chunk::State::made;
        free_.extend(chunks_[i].range);
    }
    memory_ = device_->make_host_memory(request);
}

Arena::~Arena() {
    release_memory();
    device_->release_due();
}

std::size_t Arena::next_chunk_bytes() const {
    device_->process().require_same_process("this arena");
    const std::lock_guard lock(mutex_);
    for (const Chunk& chunk : chunks_) {
        if (chunk.state == Chunk::State::absent) return chunk.range.size;
    }
    return 0;
}

bool Arena::would_fit_after_growth(const std::vector<std::size_t>& sizes, bool contiguous,
                                   bool patient) const {
    const std::lock_guard lock(mutex_);
    std::size_t growth = 0;
    std::size_t largest = 0;
    for (const Chunk& chunk : chunks_) {
        if (chunk.state != Chunk::State::absent) continue;
        growth += chunk.range.size;
        largest = std::max(largest, chunk.range.size);
    }
    if (growth == 0) return false;
    const auto too_large = [&](std::size_t size) { return free_.rounded(size) > largest; };
    if (contiguous && std::any_of(sizes.begin(), sizes.end(), too_large)) return false;
    const std::size_t later = patient ? retired_.bytes() : 0;
    return rounded_sum(sizes) <= free_.free_bytes() + later + growth;
}

bool Arena::make_chunk() {
    device_->process().require_same_process("this arena");
    Chunk* chunk = nullptr;
    {
        const std::lock_guard lock(mutex_);
        require_open();
        const auto absent = std::find_if(chunks_.begin(), chunks_.end(), [](const Chunk& each) {
            return each.state == Chunk::State::absent;
        });
        if (absent == chunks_.end()) return false;
        absent->state = Chunk::State::making;
        chunk = &*absent;
    }
    try {
        device_->make_chunk(*memory_, chunk->range);
    } catch (...) {
        const std::lock_guard lock(mutex_);
        chunk->state = Chunk::State::absent;
        throw;
    }
    {
        const std::lock_guard lock(mutex_);
        if (!closed_) {
            free_.extend(chunk->range);
            chunk->state = Chunk::State::made;
            return true;
        }
    }
    drop({chunk});  // closed meanwhile
    return false;
}

std::size_t Arena::trim(std::size_t keep) {
    require_usable();
    reclaim_retired();
    std::vector<Chunk*> dropping;
    {
        const std::lock_guard lock(mutex_);
        require_open();
        dropping.reserve(chunks_.size());
        for (auto chunk = chunks_.rbegin(); chunk != chunks_.rend(); ++chunk) {
            if (chunk->state != Chunk::State::made) continue;
            if (free_.capacity() < keep + chunk->range.size) continue;
            if (!free_.withdraw(chunk->range)) continue;
            chunk->state = Chunk::State::dropping;
            dropping.push_back(&*chunk);
        }
    }
    return drop(dropping);
}

// A chunk that the driver does not give up keeps its state: nobody makes or uses it again.
std::size_t Arena::drop(const std::vector<Chunk*>& chunks) noexcept {
    std::size_t dropped = 0;
    for (Chunk* chunk : chunks) {
        if (!device_->drop_chunk(*memory_, chunk->range)) {
            leaked_ = true;
            continue;
        }
        dropped += chunk->range.size;
        const std::lock_guard lock(mutex_);
        chunk->state = Chunk::State::absent;
    }
    return dropped;
}

bool Arena::close(bool force) noexcept {
    if (device_->process().forked()) {
        closed_ = true;
        return true;
    }
    bool idle = false;
    {
        const std::lock_guard lock(mutex_);
        idle = counters_.blocks == 0;
        if (!idle && !force) return false;
        closed_ = true;
    }
    if (idle) release_memory();
    return true;
}

// With no block alive and none to come.
void Arena::release_memory() noexcept {
    if (device_->process().forked()) {
        // The mapping does not exist here; its addresses may be somebody else's by now.
        static_cast<void>(new std::shared_ptr<HostMemory>(memory_));
        return;
    }
    try {
        std::vector<Range> made;
        Events pending;
        {
            const std::lock_guard lock(mutex_);
            pending = retired_.events();
            made.reserve(chunks_.size());
            for (Chunk& chunk : chunks_) {
                if (chunk.state != Chunk::State::made) continue;
                chunk.state = Chunk::State::absent;
                made.push_back(chunk.range);
            }
            retired_ = {};
            free_ = FreeList(0, chunk_bytes_, block_alignment);
        }
        if (leaked_) static_cast<void>(new std::shared_ptr<HostMemory>(memory_));
        if (made.empty()) return;
        // A copy may be stuck behind its producer: the device takes the memory over, and nothing
        // waits.
        Device* device = device_.get();
        device->release_after(std::move(pending), [device, memory = memory_, made] {
            const BlockingSection blocking;
            for (const Range& chunk : made) {
                if (device->drop_chunk(*memory, chunk)) continue;
                static_cast<void>(new std::shared_ptr<HostMemory>(memory));
            }
        });
    } catch (const std::exception&) {
        // No memory for the bookkeeping: what was made stays until the process ends.
        static_cast<void>(new std::shared_ptr<HostMemory>(memory_));
    }
}

ArenaStats Arena::stats() {
    device_->process().require_same_process("this arena");
    if (closed()) device_->release_due();  // its own memory, if it was closed amid a copy
    reclaim_retired();
    const std::lock_guard lock(mutex_);
    ArenaStats now = counters_;
    now.capacity_bytes = free_.capacity();
    now.free_bytes = free_.free_bytes();
    now.largest_free_bytes = free_.largest_free();
    now.retired_bytes = retired_.bytes();
    now.used_bytes = now.capacity_bytes - now.free_bytes - now.retired_bytes;
    now.locked_bytes = memory_->pinned() ? now.capacity_bytes : 0;
    return now;
}

std::vector<Region> Arena::layout() {
    device_->process().require_same_process("this arena");
    reclaim_retired();
    std::vector<Region> idle;  // what is not used, by offset
    std::vector<Chunk> chunks;
    {
        const std::lock_guard lock(mutex_);
        for (const Range& range : free_.ranges()) idle.push_back({Kind::free, range});
        for (const Range& range : retired_.ranges()) idle.push_back({Kind::retired, range});
        chunks = chunks_;
    }
    std::sort(idle.begin(), idle.end(),
              [](const Region& a, const Region& b) { return a.range.offset < b.range.offset; });
    std::vector<Region> regions;
    auto next = idle.begin();
    for (const Chunk& chunk : chunks) {
        if (chunk.state != Chunk::State::made) {
            const bool making = chunk.state == Chunk::State::making;
            regions.push_back({making ? Kind::making : Kind::absent, chunk.range});
            continue;
        }
        std::size_t at = chunk.range.offset;
        const auto add_used_up_to = [&](std::size_t end) {
            if (end > at) regions.push_back({Kind::used, {at, end - at}});
        };
        for (; next != idle.end() && next->range.offset < chunk.range.end(); ++next) {
            add_used_up_to(next->range.offset);
            regions.push_back(*next);
            at = next->range.end();
        }
        add_used_up_to(chunk.range.end());
    }
    return regions;
}

std::string Arena::describe() const {
    device_->process().require_same_process("this arena");
    std::size_t made = 0;
    {
        const std::lock_guard lock(mutex_);
        made = static_cast<std::size_t>(
            std::count_if(chunks_.begin(), chunks_.end(),
                          [](const Chunk& chunk) { return chunk.state == Chunk::State::made; }));
    }
    return memory_->describe() + ", " + std::to_string(made) + (made == 1 ? " chunk" : " chunks");
}

}  // namespace pinferry
