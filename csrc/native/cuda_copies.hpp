#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "copy_tuning.hpp"
#include "cuda_gather.hpp"

namespace pinferry::cuda {

// Chooses how the ranges of a batch are copied. Large ones go by DMA, one call each. Small ones,
// where there are several, take the first way that this device has:
//  kernel  one launch of the gather kernel, on its own stream beside the DMA
//  batch   one cuMemcpyBatchAsync, which submits faster than single calls
//  plain   single calls
// What is larger than a piece goes in several.
// All of it is ordered behind what is queued on the copy stream before, and before what is queued
// there later.
class Copies {
  public:
    Copies(std::shared_ptr<PrimaryContext> context, std::shared_ptr<EventPool> events);

    // "kernel", "batch" or "plain": the way that small ranges take.
    const char* tier() const;

    // With the context current. See GatherKernel::use.
    void use_kernel(Function function, unsigned blocks, unsigned threads);

    // Throws Error("InvalidArgument") for no blocks, or pieces of no bytes.
    void tune(Direction direction, CopyTuning tuning);
    CopyTuning tuning(Direction direction) const;

    // Queues the copies on `stream`, with the context current. Does not block.
    // Throws Error("DriverCallFailed") or Error("DeviceOutOfMemory"); part of the copies may run
    // then, until drain() and the stream say otherwise.
    void queue(Lane lane, const std::vector<CopyRange>& ranges, Stream stream);
    // The same for host memory that only the host can reach: whole ranges, one call each. Blocks
    // the host until the driver has read or written it.
    void queue_unpinned(Lane lane, const std::vector<CopyRange>& ranges, Stream stream) {
        queue_each(lane.direction, ranges, stream);
    }

    // Blocks the host until no kernel copies any more; with the context current. Never throws.
    void drain() noexcept;

  private:
    GatherKernel* kernel() const;
    void queue_each(Direction direction, const std::vector<CopyRange>& ranges, Stream stream);
    bool has_batch() const noexcept;
    void queue_batch(Direction direction, const std::vector<CopyRange>& ranges, Stream stream);

    std::shared_ptr<PrimaryContext> context_;
    const Driver& driver_;
    std::shared_ptr<EventPool> events_;
    std::atomic<bool> batch_refused_{false};
    mutable std::mutex mutex_;
    std::unique_ptr<GatherKernel> kernel_;  // guarded by mutex_; made once and then kept
    std::array<CopyTuning, 2> tunings_;     // by direction; guarded by mutex_
};

}  // namespace pinferry::cuda
