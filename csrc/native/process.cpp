#include "process.hpp"

#include <pthread.h>

#include <atomic>
#include <string>

#include "error.hpp"

namespace pinferry {
namespace {

std::atomic<std::uint64_t> generation{0};

std::uint64_t current_generation() noexcept {
    // Registered once, at first use: a handler cannot be taken back.
    static const int registered = pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1); });
    static_cast<void>(registered);
    return generation.load(std::memory_order_relaxed);
}

}  // namespace

ProcessTag::ProcessTag() noexcept : generation_(current_generation()) {}

bool ProcessTag::forked() const noexcept {
    return generation.load(std::memory_order_relaxed) != generation_;
}

void ProcessTag::require_same_process(const char* what) const {
    if (!forked()) return;
    throw Error("ForkedProcess",
                std::string(what) +
                    " belongs to the parent process and cannot be used after fork; start workers "
                    "with 'spawn', or, on the CPU device alone, make a new one here");
}

}  // namespace pinferry
