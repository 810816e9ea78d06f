#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "device.hpp"

namespace pinferry {

// A completed flag that threads can wait for, with the time at which it was set.
class HostEvent final : public Event, public std::enable_shared_from_this<HostEvent> {
  public:
    using Clock = std::chrono::steady_clock;

    bool complete() const noexcept override;
    bool synchronize(std::optional<std::chrono::nanoseconds> timeout) const override;

    void set() noexcept;
    Clock::time_point time() const;

  private:
    mutable std::mutex mutex_;
    mutable std::condition_variable changed_;
    bool complete_ = false;   // guarded by mutex_
    Clock::time_point time_;  // guarded by mutex_
};

// A worker thread that runs what is queued, in order: the CPU's stand-in for a CUDA stream.
// Destruction runs everything queued (releasing a held latch first), then joins.
class HostStream final : public OwnedStream {
  public:
    HostStream();
    ~HostStream() override;

    StreamHandle handle() const noexcept override { return reinterpret_cast<StreamHandle>(this); }
    void fill(Address target, unsigned char value, std::size_t bytes) override;
    void copy(Address target, Address source, std::size_t bytes) override;
    void hold() override;
    void release() noexcept override;
    void synchronize() override;

    std::shared_ptr<HostEvent> record();
    void wait(std::shared_ptr<const HostEvent> event);
    // Queues any work; it must not throw.
    void run_later(std::function<void()> work);

  private:
    void run();

    ProcessTag process_;
    std::mutex mutex_;
    std::condition_variable queued_;
    std::deque<std::function<void()>> queue_;  // guarded by mutex_
    bool stopping_ = false;                    // guarded by mutex_
    std::shared_ptr<HostEvent> latch_;         // guarded by mutex_
    std::thread worker_;
};

}  // namespace pinferry
