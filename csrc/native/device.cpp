#include "device.hpp"

#include <utility>

namespace pinferry {

void Device::note_copies(Lane lane, std::shared_ptr<Event> end) {
    const std::lock_guard lock(mutex_);
    std::swap(last_copies_[lane.index()], end);
}

Events Device::copies_in_flight() const {
    Events events;
    const std::lock_guard lock(mutex_);
    for (const auto& end : last_copies_) {
        if (end) events.push_back(end);
    }
    return events;
}

void Device::free(Address address) noexcept {
    if (process_.forked()) return;
    try {
        releases_.add(copies_in_flight(), [this, address] { free_now(address); });
    } catch (const std::exception&) {
        // No memory to remember it by: the process's end frees it.
    }
}

}  // namespace pinferry
