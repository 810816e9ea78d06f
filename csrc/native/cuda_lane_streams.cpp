#include "cuda_lane_streams.hpp"

namespace pinferry::cuda {

LaneStreams::LaneStreams(std::shared_ptr<PrimaryContext> context)
    : context_(std::move(context)), driver_(context_->driver()) {
    const PrimaryContext::Scope scope(*context_);
    int least = 0;
    int greatest = 0;  // the lower number
    check(driver_, "cuCtxGetStreamPriorityRange", driver_.priority_range(&least, &greatest));
    try {
        for (const Direction direction : {Direction::to_host, Direction::to_device}) {
            for (const bool urgent : {false, true}) {
                Stream& stream = streams_[Lane(direction, urgent).index()];
                check(driver_, "cuStreamCreateWithPriority",
                      driver_.stream_create_with_priority(&stream, stream_non_blocking,
                                                          urgent ? greatest : least));
            }
        }
    } catch (...) {
        destroy();
        throw;
    }
}

LaneStreams::~LaneStreams() {
    const PrimaryContext::Scope scope(*context_, std::nothrow);
    if (scope.ok()) destroy();
}

// Does not wait for a stream: the driver lets what is queued run on.
void LaneStreams::destroy() noexcept {
    for (const Stream stream : streams_) {
        if (stream) driver_.stream_destroy(stream);
    }
}

void LaneStreams::drain() const noexcept {
    for (const Stream stream : streams_) driver_.stream_synchronize(stream);
}

}  // namespace pinferry::cuda
