#include "host_memory.hpp"

#include <algorithm>

#include "error.hpp"
#include "format_bytes.hpp"

namespace pinferry {
namespace {

std::string describe_pages(const Pages& pages) {
    std::string text = pages.huge_pages() ? "huge pages asked for" : "small pages";
    if (pages.numa_node())
        text += ", NUMA node " + std::to_string(*pages.numa_node()) + " preferred";
    return text;
}

}  // namespace

UnpinnedMemory::UnpinnedMemory(std::size_t bytes, std::size_t chunk_bytes,
                               const PageOptions& options)
    : HostMemory(bytes, chunk_bytes), pages_(bytes, options) {}

std::string UnpinnedMemory::describe() const {
    return "the CPU device needs no pinned memory; " + describe_pages(pages_);
}

RegisteredMemory::RegisteredMemory(const cuda::Driver& driver, std::size_t bytes,
                                   std::size_t chunk_bytes, const PageOptions& options)
    : HostMemory(bytes, chunk_bytes), driver_(driver), pages_(bytes, options) {
    while (registered_ < size_) {
        const std::size_t chunk = std::min(chunk_bytes_, size_ - registered_);
        const cuda::Result result =
            driver_.host_register(pages_.data() + registered_, chunk, cuda::register_portable);
        if (result != cuda::success) {
            const std::size_t done = registered_;
            unregister_all();
            throw Error("RegistrationFailed",
                        cuda::describe_failure(driver_, "cuMemHostRegister", result) + " for " +
                            format_bytes(chunk) + " after " + format_bytes(done) + " of " +
                            format_bytes(size_) + "; every part was unregistered again",
                        {{"code", result}, {"requested", static_cast<std::int64_t>(size_)}});
        }
        registered_ += chunk;
    }
}

RegisteredMemory::~RegisteredMemory() { unregister_all(); }

void RegisteredMemory::unregister_all() noexcept {
    for (std::size_t offset = 0; offset < registered_; offset += chunk_bytes_) {
        // A failure means that the context is gone, and its registrations with it.
        driver_.host_unregister(pages_.data() + offset);
    }
    registered_ = 0;
}

std::string RegisteredMemory::describe() const {
    const std::size_t chunks = (size_ + chunk_bytes_ - 1) / chunk_bytes_;
    return describe_pages(pages_) + ", registered in " + std::to_string(chunks) +
           (chunks == 1 ? " chunk" : " chunks");
}

DriverMemory::DriverMemory(const cuda::Driver& driver, std::size_t bytes, std::size_t chunk_bytes,
                           std::string reason)
    : HostMemory(bytes, chunk_bytes), driver_(driver), reason_(std::move(reason)) {
    chunks_.reserve((size_ + chunk_bytes_ - 1) / chunk_bytes_);
    for (std::size_t offset = 0; offset < size_; offset += chunk_bytes_) {
        void* chunk = nullptr;
        const cuda::Result result = driver_.host_alloc(
            &chunk, std::min(chunk_bytes_, size_ - offset), cuda::host_alloc_portable);
        if (result != cuda::success) {
            free_all();
            throw Error("RegistrationFailed",
                        cuda::describe_failure(driver_, "cuMemHostAlloc", result) + " after " +
                            format_bytes(offset) + " of " + format_bytes(size_) +
                            "; every part was freed again. Ask for a smaller arena",
                        {{"code", result}, {"requested", static_cast<std::int64_t>(size_)}});
        }
        chunks_.push_back(static_cast<std::byte*>(chunk));
    }
}

DriverMemory::~DriverMemory() { free_all(); }

void DriverMemory::free_all() noexcept {
    for (std::byte* chunk : chunks_) driver_.host_free(chunk);
    chunks_.clear();
}

std::string DriverMemory::describe() const { return "allocated by the driver, because " + reason_; }

}  // namespace pinferry
