#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda_context.hpp"
#include "event.hpp"

namespace pinferry::cuda {

// Events of one context for reuse: creating one costs microseconds, recording a used one does not.
class EventPool {
  public:
    explicit EventPool(std::shared_ptr<PrimaryContext> context) : context_(std::move(context)) {}
    ~EventPool();
    EventPool(const EventPool&) = delete;
    EventPool& operator=(const EventPool&) = delete;

    // With the context current. Throws Error("DriverCallFailed") if one must be made and cannot be.
    EventHandle take(bool timed);
    void give_back(EventHandle event, bool timed) noexcept;

    const PrimaryContext& context() const noexcept { return *context_; }

  private:
    std::shared_ptr<PrimaryContext> context_;
    std::mutex mutex_;
    std::array<std::vector<EventHandle>, 2> idle_;  // untimed, timed; guarded by mutex_
};

// One recorded event. It returns to its pool when the last ticket or block lets go of it.
class CudaEvent final : public Event {
  public:
    // Records on `stream`, with the context current.
    CudaEvent(std::shared_ptr<EventPool> pool, Stream stream, bool timed);
    ~CudaEvent() override;
    CudaEvent(const CudaEvent&) = delete;
    CudaEvent& operator=(const CudaEvent&) = delete;

    bool complete() const noexcept override;
    bool synchronize(std::optional<std::chrono::nanoseconds> timeout) const override;

    EventHandle handle() const noexcept { return handle_; }

  private:
    std::shared_ptr<EventPool> pool_;
    bool timed_;
    EventHandle handle_;
    mutable std::atomic<bool> known_complete_{false};  // spares thousands of blocks the driver call
};

}  // namespace pinferry::cuda
