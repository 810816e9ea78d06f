#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "cuda_event.hpp"
#include "cuda_lane_streams.hpp"
#include "cuda_table_pool.hpp"

namespace pinferry::cuda {

// The kernel of csrc/kernels/gather.cu, which copies many ranges in one launch, on a stream of its
// own for each lane. It is compiled elsewhere; whoever hands it in keeps it loaded.
//
// It uses the host's own addresses. Under unified addressing, which every 64-bit Linux has, memory
// registered or allocated by the driver is mapped into every context with portable access, with or
// without the flag DEVICEMAP. That registered memory has one address on both sides is an attribute
// of the device, which use() asks for.
class GatherKernel {
  public:
    // All of these with the context current. What `use` throws, the constructor throws too.
    GatherKernel(std::shared_ptr<PrimaryContext> context, std::shared_ptr<EventPool> events,
                 Function function, unsigned threads);
    GatherKernel(const GatherKernel&) = delete;
    GatherKernel& operator=(const GatherKernel&) = delete;

    // Launches `function` from now on, in blocks of `threads`.
    // Throws Error("InvalidArgument") or Error("DriverCallFailed"), and then changes nothing.
    void use(Function function, unsigned threads);

    // Queues the copies behind what is queued on `stream`, and beside what will be. Does not block.
    // Returns the event behind them; `stream` does not wait for it yet.
    // Throws Error("DriverCallFailed") or Error("DeviceOutOfMemory"); after drain(), no copy of
    // this call runs any more.
    std::shared_ptr<CudaEvent> launch(Lane lane, const std::vector<CopyRange>& ranges,
                                      Stream stream, unsigned blocks);

    // Blocks the host until what was launched has ended. Never throws.
    void drain() noexcept;

  private:
    struct Code {
        Function function = nullptr;
        unsigned threads = 0;
    };

    Code code() const;
    void start(const Code& code, const CopyUnit* units, std::size_t count, unsigned blocks,
               Stream stream);

    std::shared_ptr<PrimaryContext> context_;
    const Driver& driver_;
    std::shared_ptr<EventPool> events_;
    TablePool tables_;
    LaneStreams streams_;
    mutable std::mutex mutex_;
    Code code_;  // guarded by mutex_
};

}  // namespace pinferry::cuda
