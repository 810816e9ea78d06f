#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

namespace pinferry {

// A point in a stream, recorded once. Owned by shared_ptr: tickets and host blocks share it.
class Event {
  public:
    virtual ~Event() = default;

    // True once everything queued before the event has run. Never throws: an event whose device
    // reports an error counts as incomplete, so that no memory is reused behind it.
    virtual bool complete() const noexcept = 0;

    // Blocks the host until complete. Returns false when `timeout` passed first.
    // Throws Error("DriverCallFailed") if the device reports an error.
    virtual bool synchronize(std::optional<std::chrono::nanoseconds> timeout) const = 0;
};

// How long destructors wait for work that should be about to end, before they let go of it
// unfinished.
constexpr auto farewell = std::chrono::seconds(1);

using Events = std::vector<std::shared_ptr<Event>>;

}  // namespace pinferry
