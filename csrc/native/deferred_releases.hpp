#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "event.hpp"
#include "process.hpp"

namespace pinferry {

// Memory whose owner died while copies may still touch it. What is due is released by later calls;
// nothing ever waits for a copy that may be stuck.
class DeferredReleases {
  public:
    // Calls `release` once every event is complete: at once if they are. Never throws; what cannot
    // be remembered for want of memory is never released.
    void add(Events events, std::function<void()> release) noexcept;

    // Calls what is due. Never blocks.
    void run_due() noexcept;

    // For the end of a device: waits a moment for the rest, then leaves it to the process's end.
    void finish() noexcept;

  private:
    struct Entry {
        Events events;
        std::function<void()> release;
    };

    ProcessTag process_;  // a forked child owns none of it, and releases nothing
    std::mutex mutex_;
    std::vector<Entry> entries_;  // guarded by mutex_
};

}  // namespace pinferry
