#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "device.hpp"

namespace pinferry {

// A moment on a device's own clock, from which Ticket::span_ms counts. Copyable state is shared.
class Mark {
  public:
    // Behind everything queued on `stream` so far. Does not block the host.
    Mark(std::shared_ptr<Device> device, StreamHandle stream)
        : device_(std::move(device)), event_(device_->record(stream, true)) {}

    // Blocks the host until the moment has come. False when `timeout` passed first.
    bool synchronize(std::optional<std::chrono::nanoseconds> timeout) const {
        device_->process().require_same_process("this mark");
        return event_->synchronize(timeout);
    }

    const std::shared_ptr<Device>& device() const noexcept { return device_; }
    const std::shared_ptr<Event>& event() const noexcept { return event_; }

  private:
    std::shared_ptr<Device> device_;
    std::shared_ptr<Event> event_;
};

}  // namespace pinferry
