#include "cuda_event.hpp"

#include <algorithm>
#include <thread>

namespace pinferry::cuda {

EventPool::~EventPool() {
    const PrimaryContext::Scope scope(*context_, std::nothrow);
    if (!scope.ok()) return;
    for (const auto& events : idle_) {
        for (EventHandle event : events) context_->driver().event_destroy(event);
    }
}

EventHandle EventPool::take(bool timed) {
    {
        const std::lock_guard lock(mutex_);
        auto& idle = idle_[timed];
        if (!idle.empty()) {
            EventHandle event = idle.back();
            idle.pop_back();
            return event;
        }
    }
    EventHandle event = nullptr;
    check(context_->driver(), "cuEventCreate",
          context_->driver().event_create(&event, timed ? event_default : event_disable_timing));
    return event;
}

void EventPool::give_back(EventHandle event, bool timed) noexcept {
    try {
        const std::lock_guard lock(mutex_);
        idle_[timed].push_back(event);
    } catch (const std::exception&) {
        // No memory to remember it by: the event is lost, which the driver bears.
    }
}

CudaEvent::CudaEvent(std::shared_ptr<EventPool> pool, Stream stream, bool timed)
    : pool_(std::move(pool)), timed_(timed), handle_(pool_->take(timed)) {
    const Driver& driver = pool_->context().driver();
    if (const Result result = driver.event_record(handle_, stream); result != success) {
        pool_->give_back(handle_, timed_);
        check(driver, "cuEventRecord", result);
    }
}

CudaEvent::~CudaEvent() { pool_->give_back(handle_, timed_); }

bool CudaEvent::complete() const noexcept {
    if (known_complete_.load(std::memory_order_acquire)) return true;
    const PrimaryContext::Scope scope(pool_->context(), std::nothrow);
    if (!scope.ok() || pool_->context().driver().event_query(handle_) != success) return false;
    known_complete_.store(true, std::memory_order_release);
    return true;
}

bool CudaEvent::synchronize(std::optional<std::chrono::nanoseconds> timeout) const {
    const PrimaryContext::Scope scope(pool_->context());
    const Driver& driver = pool_->context().driver();
    if (!timeout) {
        check(driver, "cuEventSynchronize", driver.event_synchronize(handle_));
        return true;
    }
    // The driver has no wait with a limit. Poll often at first, when most copies end.
    const auto deadline = std::chrono::steady_clock::now() + *timeout;
    auto pause = std::chrono::microseconds(5);
    while (true) {
        const Result result = driver.event_query(handle_);
        if (result == success) return true;
        if (result != error_not_ready) check(driver, "cuEventQuery", result);
        if (std::chrono::steady_clock::now() >= deadline) return false;
        std::this_thread::sleep_for(pause);
        pause = std::min(pause * 2, std::chrono::microseconds(500));
    }
}

}  // namespace pinferry::cuda
