#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "copy_ranges.hpp"
#include "deferred_releases.hpp"
#include "event.hpp"
#include "host_memory.hpp"
#include "lane.hpp"
#include "process.hpp"

namespace pinferry {

// A stream by its native value: CUstream, or the address of a HostStream. Zero is the stream that
// needs no name: the legacy default stream of CUDA, the calling thread on the CPU.
using StreamHandle = std::uintptr_t;
using Address = std::uintptr_t;

// How host memory is made. `automatic` pins pages, or takes the driver's own pinned memory where
// pinning is not permitted, or plain pages on the CPU.
enum class Backend { automatic, registered, driver, unpinned };

// What an arena asks of a device.
struct HostMemoryRequest {
    ChunkLayout layout;
    std::size_t at_once = 1;  // chunks, the first ones, to make with it; at least one
    PageOptions pages;
    Backend backend = Backend::automatic;

    std::vector<Range> first_chunks() const {
        return {layout.chunks.begin(),
                layout.chunks.begin() + static_cast<std::ptrdiff_t>(at_once)};
    }
};

// A stream that the caller owns. Tests and benchmarks play producers and consumers with it.
class OwnedStream {
  public:
    virtual ~OwnedStream() = default;
    virtual StreamHandle handle() const noexcept = 0;

    // Queues work in stream order; none of these blocks the host.
    virtual void fill(Address target, unsigned char value, std::size_t bytes) = 0;
    virtual void copy(Address target, Address source, std::size_t bytes) = 0;

    // Holds everything queued after this call until release(). One latch at a time.
    virtual void hold() = 0;
    virtual void release() noexcept = 0;

    // Blocks the host until everything queued so far has run.
    virtual void synchronize() = 0;
};

// What the engine needs of a device: two copy streams, events, pinned memory. All calls may be made
// from any thread. Only those that say so block the host.
class Device {
  public:
    virtual ~Device() = default;

    virtual const char* kind() const noexcept = 0;  // "cuda" or "cpu"
    virtual int index() const noexcept = 0;
    virtual std::string name() const = 0;
    virtual std::string uuid() const = 0;        // "" on the CPU
    virtual std::string pci_bus_id() const = 0;  // "" on the CPU

    // The engine's own stream of a lane. It never waits for the legacy default stream.
    virtual StreamHandle copy_stream(Lane lane) = 0;

    // An event behind everything queued on `stream` so far. `timed` ones can be given to
    // elapsed_ms.
    virtual std::shared_ptr<Event> record(StreamHandle stream, bool timed) = 0;

    // Makes what is queued on `stream` from now on wait for `event`. On the CPU the calling thread
    // is stream 0, so there it blocks until the event is complete.
    virtual void wait(StreamHandle stream, const Event& event) = 0;

    // Milliseconds between two complete, timed events.
    virtual double elapsed_ms(const Event& start, const Event& end) const = 0;

    // The last event behind the copies of each lane, told by whoever queues them.
    void note_copies(Lane lane, std::shared_ptr<Event> end);
    Events copies_in_flight() const;

    // Calls `release` when every event is complete: at once, or in a later call. Never blocks.
    void release_after(Events events, std::function<void()> release) noexcept {
        releases_.add(std::move(events), std::move(release));
    }

    // Calls what is due by now. Never blocks.
    void release_due() noexcept { releases_.run_due(); }

    // Queues the copies of one batch on the copy stream of their lane; among each other they are in
    // no order. If it throws, part of them may run until drain() returns. Where the host's memory
    // is not `pinned`, a driver blocks the host until it has read or written it.
    virtual void copy(Lane lane, const std::vector<CopyRange>& ranges, bool pinned) = 0;

    // How small ranges are copied: by one "kernel", by one call for the "batch", or one by one,
    // "plain".
    virtual const char* copy_tier() const = 0;

    // Whether kernels can read and write an arena's memory at the host's own addresses.
    virtual bool maps_host_memory() const = 0;

    // Blocks the host until no copy runs any more. Never throws: for clean-up after a failure.
    virtual void drain() noexcept = 0;

    // Host memory that this device copies from and to at full speed, with its first chunks: all of
    // them or, with an error, nothing. Blocks the host.
    // Throws Error("InvalidArgument") for a backend that the device does not have.
    virtual std::unique_ptr<HostMemory> make_host_memory(const HostMemoryRequest& request) = 0;
    // One more chunk, and one less, under the device's context. Both block the host. Dropping
    // returns false where the context is gone or the driver refuses: then the memory must never go.
    virtual void make_chunk(HostMemory& memory, Range chunk) = 0;
    virtual bool drop_chunk(HostMemory& memory, Range chunk) noexcept = 0;

    virtual Address allocate(std::size_t bytes) = 0;
    // Frees it once the copies in flight have ended. Never blocks.
    void free(Address address) noexcept;

    virtual std::unique_ptr<OwnedStream> create_stream() = 0;

    const ProcessTag& process() const noexcept { return process_; }

  protected:
    virtual void free_now(Address address) noexcept = 0;

    DeferredReleases releases_;

  private:
    ProcessTag process_;
    mutable std::mutex mutex_;
    std::array<std::shared_ptr<Event>, Lane::count> last_copies_;  // guarded by mutex_
};

}  // namespace pinferry
