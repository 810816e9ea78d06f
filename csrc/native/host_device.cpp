#include "host_device.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "error.hpp"
#include "format_bytes.hpp"

namespace pinferry {
namespace {

constexpr std::size_t device_alignment = 512;  // what CUDA's allocators give

}  // namespace

HostStream& HostDevice::stream(Lane lane) {
    const std::lock_guard lock(mutex_);
    auto& stream = streams_[lane.index()];
    if (!stream) stream = std::make_unique<HostStream>();
    return *stream;
}

StreamHandle HostDevice::copy_stream(Lane lane) {
    process().require_same_process("the CPU device");
    return stream(lane).handle();
}

std::shared_ptr<Event> HostDevice::record(StreamHandle stream, bool) {
    process().require_same_process("the CPU device");
    if (stream != 0) return HostStream::named(stream).record();
    // The calling thread has done its work by the time it calls.
    auto event = std::make_shared<HostEvent>();
    event->set();
    return event;
}

void HostDevice::wait(StreamHandle stream, const Event& event) {
    process().require_same_process("the CPU device");
    const auto& host_event = static_cast<const HostEvent&>(event);
    if (stream == 0) {
        host_event.synchronize(std::nullopt);
    } else {
        HostStream::named(stream).wait(host_event.shared_from_this());
    }
}

double HostDevice::elapsed_ms(const Event& start, const Event& end) const {
    const auto from = static_cast<const HostEvent&>(start).time();
    const auto to = static_cast<const HostEvent&>(end).time();
    return std::chrono::duration<double, std::milli>(to - from).count();
}

void HostDevice::copy(Lane lane, const std::vector<CopyRange>& ranges, bool /*pinned*/) {
    process().require_same_process("the CPU device");
    stream(lane).run_later([direction = lane.direction, ranges] {
        for (const CopyRange& range : ranges) {
            auto* const device = reinterpret_cast<std::byte*>(range.device);
            if (direction == Direction::to_host) {
                std::memcpy(range.host, device, range.bytes);
            } else {
                std::memcpy(device, range.host, range.bytes);
            }
        }
    });
}

void HostDevice::drain() noexcept {
    if (process().forked()) return;
    try {
        std::array<HostStream*, Lane::count> streams{};  // a stream that was made stays
        {
            const std::lock_guard lock(mutex_);
            std::transform(streams_.begin(), streams_.end(), streams.begin(),
                           [](const auto& stream) { return stream.get(); });
        }
        for (HostStream* stream : streams) {
            if (stream) stream->synchronize();
        }
    } catch (const std::exception&) {
        // Only memory for the queue entry can be short; the streams still run what they hold.
    }
}

std::unique_ptr<HostMemory> HostDevice::make_host_memory(const HostMemoryRequest& request) {
    if (request.backend != Backend::automatic && request.backend != Backend::unpinned) {
        throw Error("InvalidArgument",
                    "the CPU device has no pinned memory; use backend 'auto' or 'unpinned'");
    }
    auto memory = std::make_unique<UnpinnedMemory>(request.layout, request.pages);
    make_all(*memory, request.first_chunks());
    return memory;
}

void HostDevice::make_chunk(HostMemory& memory, Range chunk) { memory.make(chunk); }

bool HostDevice::drop_chunk(HostMemory& memory, Range chunk) noexcept { return memory.drop(chunk); }

Address HostDevice::allocate(std::size_t bytes) {
    const std::size_t size = (bytes + device_alignment - 1) / device_alignment * device_alignment;
    void* memory = std::aligned_alloc(device_alignment, size == 0 ? device_alignment : size);
    if (!memory) {
        throw Error("DeviceOutOfMemory",
                    "no " + format_bytes(bytes) + " of memory left on the CPU device",
                    {{"requested", static_cast<std::int64_t>(bytes)}});
    }
    return reinterpret_cast<Address>(memory);
}

void HostDevice::free_now(Address address) noexcept { std::free(reinterpret_cast<void*>(address)); }

std::unique_ptr<OwnedStream> HostDevice::create_stream() {
    process().require_same_process("the CPU device");
    return std::make_unique<HostStream>();
}

}  // namespace pinferry
