#include "host_stream.hpp"

#include <cstring>
#include <string>
#include <unordered_set>

#include "error.hpp"

namespace pinferry {

HostEvent::~HostEvent() {
    // Destroying a condition that a thread of the parent waits for would hang the child.
    if (process_.forked()) static_cast<void>(waiting_.release());
}

bool HostEvent::synchronize(std::optional<std::chrono::nanoseconds> timeout) const {
    std::unique_lock lock(waiting_->mutex);
    const auto done = [this] { return complete(); };
    if (timeout) return waiting_->changed.wait_for(lock, *timeout, done);
    waiting_->changed.wait(lock, done);
    return true;
}

void HostEvent::set() noexcept {
    const std::lock_guard lock(waiting_->mutex);
    time_ = Clock::now();
    complete_.store(true, std::memory_order_release);
    waiting_->changed.notify_all();
}

namespace {

// Handles are plain numbers to callers, who may make mistakes.
struct LivingStreams {
    std::mutex mutex;
    std::unordered_set<const HostStream*> streams;
};

LivingStreams& living() {
    static auto* instance = new LivingStreams;  // streams may outlive static objects
    return *instance;
}

}  // namespace

HostStream& HostStream::named(StreamHandle handle) {
    auto* stream = reinterpret_cast<HostStream*>(handle);
    const std::lock_guard lock(living().mutex);
    if (living().streams.count(stream) == 0) {
        throw Error("InvalidArgument", std::to_string(handle) + " is no stream of the CPU device");
    }
    return *stream;
}

HostStream::HostStream()
    : queue_(std::make_shared<Queue>()), worker_([queue = queue_] { run(*queue); }) {
    const std::lock_guard lock(living().mutex);
    living().streams.insert(this);
}

HostStream::~HostStream() {
    if (process_.forked()) {
        // The worker exists in the parent only: its handle may name another thread here by now, and
        // its condition cannot be destroyed.
        static_cast<void>(new std::thread(std::move(worker_)));
        static_cast<void>(new std::shared_ptr<Queue>(std::move(queue_)));
        return;
    }
    {
        const std::lock_guard lock(living().mutex);
        living().streams.erase(this);
    }
    release();
    std::unique_lock lock(queue_->mutex);
    queue_->stopping = true;
    queue_->changed.notify_all();
    const bool ended = queue_->changed.wait_for(
        lock, farewell, [this] { return queue_->work.empty() && !queue_->busy; });
    lock.unlock();
    if (ended) {
        worker_.join();
    } else {
        worker_.detach();
    }
}

void HostStream::run(Queue& queue) {
    std::unique_lock lock(queue.mutex);
    while (true) {
        queue.changed.wait(lock, [&] { return queue.stopping || !queue.work.empty(); });
        if (queue.work.empty()) return;
        {
            const std::function<void()> work = std::move(queue.work.front());
            queue.work.pop_front();
            queue.busy = true;
            lock.unlock();
            work();
        }
        lock.lock();
        queue.busy = false;
        queue.changed.notify_all();
    }
}

void HostStream::run_later(std::function<void()> work) {
    process_.require_same_process("this CPU stream");
    {
        const std::lock_guard lock(queue_->mutex);
        queue_->work.push_back(std::move(work));
    }
    queue_->changed.notify_all();
}

bool HostStream::idle() const {
    const std::lock_guard lock(queue_->mutex);
    return queue_->work.empty() && !queue_->busy;
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
        const std::lock_guard lock(latch_mutex_);
        if (latch_) {
            throw Error("InvalidArgument", "this stream is held already; release() it first");
        }
        latch_ = latch;
    }
    wait(latch);
}

void HostStream::release() noexcept {
    if (process_.forked()) return;
    const std::lock_guard lock(latch_mutex_);
    if (latch_) latch_->set();
    latch_.reset();
}

void HostStream::synchronize() { record()->synchronize(std::nullopt); }

}  // namespace pinferry
