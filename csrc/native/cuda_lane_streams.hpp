#pragma once

#include <array>
#include <memory>

#include "cuda_context.hpp"
#include "lane.hpp"

namespace pinferry::cuda {

// A non-blocking stream for each lane; those of urgent ones have the highest priority there is.
class LaneStreams {
  public:
    // Throws Error("DriverCallFailed") or what making the context current throws.
    explicit LaneStreams(std::shared_ptr<PrimaryContext> context);
    ~LaneStreams();
    LaneStreams(const LaneStreams&) = delete;
    LaneStreams& operator=(const LaneStreams&) = delete;

    Stream operator[](Lane lane) const noexcept { return streams_[lane.index()]; }

    // Blocks the host until all are idle, with the context current. Never throws.
    void drain() const noexcept;

  private:
    void destroy() noexcept;

    std::shared_ptr<PrimaryContext> context_;
    const Driver& driver_;
    std::array<Stream, Lane::count> streams_{};
};

}  // namespace pinferry::cuda
