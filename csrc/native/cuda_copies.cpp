#include "cuda_copies.hpp"

#include <algorithm>

#include "error.hpp"

namespace pinferry::cuda {
namespace {

// A launch with its fork and join takes the host about as long as two single copies, and ends some
// microseconds later than they do.
constexpr std::size_t several = 4;

void require_blocks(unsigned blocks) {
    if (blocks == 0) throw Error("InvalidArgument", "a kernel needs one block or more, not 0");
}

void add_pieces(const CopyRange& range, std::size_t at_most, std::vector<CopyRange>& pieces) {
    for (std::size_t done = 0; done < range.bytes; done += at_most) {
        const std::size_t bytes = std::min(at_most, range.bytes - done);
        pieces.push_back({range.host + done, range.device + done, bytes});
    }
}

}  // namespace

Copies::Copies(std::shared_ptr<PrimaryContext> context, std::shared_ptr<EventPool> events)
    : context_(std::move(context)), driver_(context_->driver()), events_(std::move(events)) {}

const char* Copies::tier() const { return kernel() ? "kernel" : has_batch() ? "batch" : "plain"; }

GatherKernel* Copies::kernel() const {
    const std::lock_guard lock(mutex_);
    return kernel_.get();
}

void Copies::use_kernel(Function function, unsigned blocks, unsigned threads) {
    require_blocks(blocks);
    if (GatherKernel* const kernel = this->kernel()) {
        kernel->use(function, threads);
    } else {
        auto made = std::make_unique<GatherKernel>(context_, events_, function, threads);
        const std::lock_guard lock(mutex_);
        if (!kernel_) kernel_ = std::move(made);
    }
    const std::lock_guard lock(mutex_);
    for (CopyTuning& tuning : tunings_) tuning.blocks = blocks;
}

void Copies::tune(Direction direction, CopyTuning tuning) {
    require_blocks(tuning.blocks);
    if (tuning.piece_bytes == 0) throw Error("InvalidArgument", "a piece has one byte or more");
    const std::lock_guard lock(mutex_);
    tunings_[static_cast<std::size_t>(direction)] = tuning;
}

CopyTuning Copies::tuning(Direction direction) const {
    const std::lock_guard lock(mutex_);
    return tunings_[static_cast<std::size_t>(direction)];
}

void Copies::queue(Lane lane, const std::vector<CopyRange>& ranges, Stream stream) {
    const Direction direction = lane.direction;
    const CopyTuning tuning = this->tuning(direction);
    std::vector<CopyRange> small, large;
    for (const CopyRange& range : ranges) {
        if (range.bytes < tuning.threshold_bytes) {
            small.push_back(range);
        } else {
            add_pieces(range, tuning.piece_bytes, large);
        }
    }
    GatherKernel* const kernel = this->kernel();
    if (small.size() < several) {
        queue_each(direction, small, stream);
        queue_each(direction, large, stream);
    } else if (kernel) {
        const auto end = kernel->launch(lane, small, stream, tuning.blocks);
        queue_each(direction, large, stream);
        check(driver_, "cuStreamWaitEvent", driver_.stream_wait_event(stream, end->handle(), 0));
    } else {
        queue_batch(direction, small, stream);
        queue_each(direction, large, stream);
    }
}

void Copies::queue_each(Direction direction, const std::vector<CopyRange>& ranges, Stream stream) {
    for (const CopyRange& range : ranges) {
        if (direction == Direction::to_host) {
            check(driver_, "cuMemcpyDtoHAsync",
                  driver_.copy_to_host(range.host, range.device, range.bytes, stream));
        } else {
            check(driver_, "cuMemcpyHtoDAsync",
                  driver_.copy_to_device(range.device, range.host, range.bytes, stream));
        }
    }
}

bool Copies::has_batch() const noexcept {
    return driver_.copy_batch && !batch_refused_.load(std::memory_order_relaxed);
}

void Copies::queue_batch(Direction direction, const std::vector<CopyRange>& ranges, Stream stream) {
    if (!has_batch()) return queue_each(direction, ranges, stream);
    std::vector<DevicePtr> targets, sources;
    std::vector<std::size_t> sizes;
    for (auto* addresses : {&targets, &sources}) addresses->reserve(ranges.size());
    sizes.reserve(ranges.size());
    auto& hosts = direction == Direction::to_host ? targets : sources;
    auto& devices = direction == Direction::to_host ? sources : targets;
    for (const CopyRange& range : ranges) {
        hosts.push_back(reinterpret_cast<Address>(range.host));
        devices.push_back(range.device);
        sizes.push_back(range.bytes);
    }
    CopyAttributes attributes{};
    attributes.source_access_order = copy_source_in_stream_order;
    std::size_t first = 0;   // the one set of attributes is for the copies from here on
    std::size_t failed = 0;  // tells which copy is at fault; the error names the call
    const Result result =
        driver_.copy_batch(targets.data(), sources.data(), sizes.data(), ranges.size(), &attributes,
                           &first, 1, &failed, stream);
    if (result == error_not_supported) {
        batch_refused_ = true;
        return queue_each(direction, ranges, stream);
    }
    check(driver_, "cuMemcpyBatchAsync", result);
}

void Copies::drain() noexcept {
    if (GatherKernel* const kernel = this->kernel()) kernel->drain();
}

}  // namespace pinferry::cuda
