#pragma once

namespace pinferry {

// What an embedding language does around a wait that a destructor may get into: Python gives up its
// lock, so that other threads can bring about what is waited for. Set once, by the bindings.
struct BlockingHooks {
    void* (*enter)() = nullptr;
    void (*leave)(void* state) = nullptr;
};

inline BlockingHooks& blocking_hooks() {
    static BlockingHooks hooks;
    return hooks;
}

// Spans a call that may block the host. Nests.
class BlockingSection {
  public:
    BlockingSection() noexcept
        : state_(blocking_hooks().enter ? blocking_hooks().enter() : nullptr) {}
    ~BlockingSection() {
        if (state_) blocking_hooks().leave(state_);
    }
    BlockingSection(const BlockingSection&) = delete;
    BlockingSection& operator=(const BlockingSection&) = delete;

  private:
    void* state_;
};

}  // namespace pinferry
