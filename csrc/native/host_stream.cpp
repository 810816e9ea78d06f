#include "host_stream.hpp"

#include <cstring>

#include "error.hpp"

namespace pinferry {

bool HostEvent::complete() const noexcept {
    const std::lock_guard lock(mutex_);
    return complete_;
}

bool HostEvent::synchronize(std::optional<std::chrono::nanoseconds> timeout) const {
    std::unique_lock lock(mutex_);
    const auto done = [this] { return complete_; };
    if (timeout) return changed_.wait_for(lock, *timeout, done);
    changed_.wait(lock, done);
    return true;
}

void HostEvent::set() noexcept {
    const std::lock_guard lock(mutex_);
    time_ = Clock::now();
    complete_ = true;
    changed_.notify_all();
}

HostEvent::Clock::time_point HostEvent::time() const {
    const std::lock_guard lock(mutex_);
    return time_;
}

HostStream::HostStream() : worker_([this] { run(); }) {}

HostStream::~HostStream() {
    if (process_.forked()) {
        worker_.detach();  // the thread exists in the parent only
        return;
    }
    release();
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    queued_.notify_one();
    worker_.join();
}

void HostStream::run() {
    while (true) {
        std::function<void()> work;
        {
            std::unique_lock lock(mutex_);
            queued_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
            if (queue_.empty()) return;
            work = std::move(queue_.front());
            queue_.pop_front();
        }
        work();
    }
}

void HostStream::run_later(std::function<void()> work) {
    process_.require_same_process("this CPU stream");
    {
        const std::lock_guard lock(mutex_);
        queue_.push_back(std::move(work));
    }
    queued_.notify_one();
}

void HostStream::fill(Address target, unsigned char value, std::size_t bytes) {
    run_later([=] { std::memset(reinterpret_cast<void*>(target), value, bytes); });
}

void HostStream::copy(Address target, Address source, std::size_t bytes) {
    run_later([=] {
        std::memcpy(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), bytes);
    });
}

std::shared_ptr<HostEvent> HostStream::record() {
    auto event = std::make_shared<HostEvent>();
    run_later([event] { event->set(); });
    return event;
}

void HostStream::wait(std::shared_ptr<const HostEvent> event) {
    run_later([event = std::move(event)] { event->synchronize(std::nullopt); });
}

void HostStream::hold() {
    auto latch = std::make_shared<HostEvent>();
    {
        const std::lock_guard lock(mutex_);
        if (latch_)
            throw Error("InvalidArgument", "this stream is held already; release() it first");
        latch_ = latch;
    }
    wait(latch);
}

void HostStream::release() noexcept {
    const std::lock_guard lock(mutex_);
    if (latch_) latch_->set();
    latch_.reset();
}

void HostStream::synchronize() { record()->synchronize(std::nullopt); }

}  // namespace pinferry
