#include "cuda_latch.hpp"

namespace pinferry::cuda {

LatchPool::~LatchPool() {
    const PrimaryContext::Scope scope(*context_, std::nothrow);
    if (!scope.ok()) return;
    for (std::uint32_t* word : idle_) context_->driver().host_free(word);
}

std::uint32_t* LatchPool::take() {
    {
        const std::lock_guard lock(mutex_);
        if (!idle_.empty()) {
            std::uint32_t* word = idle_.back();
            idle_.pop_back();
            *word = 0;
            return word;
        }
    }
    void* memory = nullptr;
    check(context_->driver(), "cuMemHostAlloc",
          context_->driver().host_alloc(&memory, sizeof(std::uint32_t), host_alloc_portable));
    auto* word = static_cast<std::uint32_t*>(memory);
    *word = 0;
    return word;
}

void LatchPool::give_back(std::uint32_t* word) noexcept {
    try {
        const std::lock_guard lock(mutex_);
        idle_.push_back(word);
    } catch (const std::exception&) {
        // No memory to remember it by: four bytes are lost.
    }
}

}  // namespace pinferry::cuda
