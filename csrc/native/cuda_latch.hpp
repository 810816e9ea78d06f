#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda_context.hpp"

namespace pinferry::cuda {

// Words of pinned memory that streams wait for on the device. They are kept for the next stream:
// the driver frees pinned memory only once the whole device is idle, and a held stream never is.
class LatchPool {
  public:
    explicit LatchPool(std::shared_ptr<PrimaryContext> context) : context_(std::move(context)) {}
    ~LatchPool();
    LatchPool(const LatchPool&) = delete;
    LatchPool& operator=(const LatchPool&) = delete;

    PrimaryContext& context() const noexcept { return *context_; }

    // A word that holds 0. The context must be current. Throws Error("DriverCallFailed").
    std::uint32_t* take();
    // Only a word that no stream reads any more.
    void give_back(std::uint32_t* word) noexcept;

  private:
    std::shared_ptr<PrimaryContext> context_;
    std::mutex mutex_;
    std::vector<std::uint32_t*> idle_;  // guarded by mutex_
};

}  // namespace pinferry::cuda
