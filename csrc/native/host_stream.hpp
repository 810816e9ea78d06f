#pragma once

#include <atomic>
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

    HostEvent() : waiting_(std::make_unique<Waiting>()) {}
    ~HostEvent() override;

    bool complete() const noexcept override { return complete_.load(std::memory_order_acquire); }
    bool synchronize(std::optional<std::chrono::nanoseconds> timeout) const override;

    void set() noexcept;
    // When it was set; only for a complete event.
    Clock::time_point time() const noexcept { return time_; }

  private:
    struct Waiting {
        std::mutex mutex;
        std::condition_variable changed;
    };

    ProcessTag process_;
    std::unique_ptr<Waiting> waiting_;
    std::atomic<bool> complete_{false};
    Clock::time_point time_;  // written before complete_
};

// A worker thread that runs what is queued, in order: the CPU's stand-in for a CUDA stream.
// Destruction opens a held latch and waits a moment for what is queued; a stream that is stuck
// behind another one runs on by itself.
class HostStream final : public OwnedStream {
  public:
    HostStream();
    ~HostStream() override;

    // The living stream with this handle. Throws Error("InvalidArgument") if there is none.
    static HostStream& named(StreamHandle handle);

    StreamHandle handle() const noexcept override { return reinterpret_cast<StreamHandle>(this); }
    void fill(Address target, unsigned char value, std::size_t bytes) override;
    void copy(Address target, Address source, std::size_t bytes) override;
    void hold() override;
    void release() noexcept override;
    void synchronize() override;

    std::shared_ptr<HostEvent> record();
    void wait(std::shared_ptr<const HostEvent> event);
    bool idle() const;
    // Queues any work; it must not throw.
    void run_later(std::function<void()> work);

  private:
    // What the worker shares with the stream, and outlives it with.
    struct Queue {
        std::mutex mutex;
        std::condition_variable changed;
        std::deque<std::function<void()>> work;  // guarded by mutex
        bool busy = false;                       // guarded by mutex
        bool stopping = false;                   // guarded by mutex
    };

    static void run(Queue& queue);

    ProcessTag process_;
    std::shared_ptr<Queue> queue_;
    std::mutex latch_mutex_;
    std::shared_ptr<HostEvent> latch_;  // guarded by latch_mutex_
    std::thread worker_;
};

}  // namespace pinferry
