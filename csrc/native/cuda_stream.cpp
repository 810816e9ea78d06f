#include "cuda_stream.hpp"

#include <thread>

#include "error.hpp"

namespace pinferry {

using Scope = cuda::PrimaryContext::Scope;

CudaStream::CudaStream(std::shared_ptr<cuda::LatchPool> latches)
    : latches_(std::move(latches)), context_(latches_->context()), driver_(context_.driver()) {
    const Scope scope(context_);
    latch_ = latches_->take();
    if (const auto result = driver_.stream_create(&stream_, cuda::stream_non_blocking);
        result != cuda::success) {
        latches_->give_back(latch_);
        cuda::check(driver_, "cuStreamCreate", result);
    }
}

CudaStream::~CudaStream() {
    release();
    const Scope scope(context_, std::nothrow);
    if (!scope.ok()) return;
    const auto deadline = std::chrono::steady_clock::now() + farewell;
    while (driver_.stream_query(stream_) == cuda::error_not_ready &&
           std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    const bool idle = driver_.stream_query(stream_) == cuda::success;
    driver_.stream_destroy(stream_);
    // A stream that is stuck elsewhere may still read the word.
    if (idle) latches_->give_back(latch_);
}

void CudaStream::fill(Address target, unsigned char value, std::size_t bytes) {
    const Scope scope(context_);
    cuda::check(driver_, "cuMemsetD8Async", driver_.fill(target, value, bytes, stream_));
}

void CudaStream::copy(Address target, Address source, std::size_t bytes) {
    const Scope scope(context_);
    cuda::check(driver_, "cuMemcpyDtoDAsync",
                driver_.copy_on_device(target, source, bytes, stream_));
}

void CudaStream::hold() {
    if (*latch_ < held_)
        throw Error("InvalidArgument", "this stream is held already; release() it first");
    const Scope scope(context_);
    cuda::check(driver_, "cuStreamWaitValue32",
                driver_.stream_wait_value(stream_, reinterpret_cast<Address>(latch_), held_ + 1,
                                          cuda::wait_value_geq));
    ++held_;
}

void CudaStream::release() noexcept {
    if (!context_.process().forked()) __atomic_store_n(latch_, held_, __ATOMIC_RELEASE);
}

void CudaStream::synchronize() {
    const Scope scope(context_);
    cuda::check(driver_, "cuStreamSynchronize", driver_.stream_synchronize(stream_));
}

}  // namespace pinferry
