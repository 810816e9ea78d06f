#include "host_memory.hpp"

#include <numeric>

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

Error refused(const cuda::Driver& driver, const char* call, cuda::Result result, Range chunk) {
    const bool forbidden = result == cuda::error_not_supported;
    return {"RegistrationFailed",
            cuda::describe_failure(driver, call, result) + " for " + format_bytes(chunk.size) +
                (forbidden ? ": pinning pages is not permitted here; backend 'driver' or 'auto' "
                             "does without"
                           : ": ask for less"),
            {{"code", result}, {"requested", static_cast<std::int64_t>(chunk.size)}}};
}

}  // namespace

void make_all(HostMemory& memory, const std::vector<Range>& chunks) {
    std::size_t made = 0;
    const auto bytes_of = [&](std::size_t count) {
        return std::accumulate(chunks.begin(), chunks.begin() + static_cast<std::ptrdiff_t>(count),
                               std::size_t{0},
                               [](std::size_t sum, Range chunk) { return sum + chunk.size; });
    };
    const auto drop_all = [&] {
        for (std::size_t i = 0; i < made; ++i) memory.drop(chunks[i]);
    };
    try {
        for (; made < chunks.size(); ++made) memory.make(chunks[made]);
    } catch (const Error& error) {
        drop_all();
        auto fields = error.fields();
        for (auto& [name, value] : fields) {
            if (name == "requested") value = static_cast<std::int64_t>(bytes_of(chunks.size()));
        }
        throw Error(error.kind(),
                    std::string(error.what()) + ". There were " + format_bytes(bytes_of(made)) +
                        " of " + format_bytes(bytes_of(chunks.size())) +
                        "; every part was given back",
                    std::move(fields));
    } catch (...) {
        drop_all();
        throw;
    }
}

std::string UnpinnedMemory::describe() const {
    return "the CPU device needs no pinned memory; " + describe_pages(pages_);
}

void RegisteredMemory::make(Range chunk) {
    pages_.populate(chunk);
    const cuda::Result result =
        driver_.host_register(pages_.data() + chunk.offset, chunk.size, cuda::register_portable);
    if (result == cuda::success) return;
    pages_.discard(chunk);
    throw refused(driver_, "cuMemHostRegister", result, chunk);
}

bool RegisteredMemory::drop(Range chunk) noexcept {
    if (driver_.host_unregister(pages_.data() + chunk.offset) != cuda::success) return false;
    pages_.discard(chunk);
    return true;
}

std::string RegisteredMemory::describe() const { return describe_pages(pages_) + ", registered"; }

void DriverMemory::make(Range chunk) {
    void* memory = nullptr;
    const cuda::Result result = driver_.host_alloc(&memory, chunk.size, cuda::host_alloc_portable);
    if (result != cuda::success) throw refused(driver_, "cuMemHostAlloc", result, chunk);
    chunks_[chunk.offset / chunk_bytes_] = static_cast<std::byte*>(memory);
}

bool DriverMemory::drop(Range chunk) noexcept {
    std::byte*& memory = chunks_[chunk.offset / chunk_bytes_];
    if (driver_.host_free(memory) != cuda::success) return false;
    memory = nullptr;
    return true;
}

std::string DriverMemory::describe() const { return "allocated by the driver, because " + reason_; }

}  // namespace pinferry
