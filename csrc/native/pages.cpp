#include "pages.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "error.hpp"
#include "format_bytes.hpp"

namespace pinferry {
namespace {

constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;
constexpr std::size_t small_page_bytes = 4096;
constexpr int mempolicy_preferred = 1;  // MPOL_PREFERRED of linux/mempolicy.h
constexpr int max_numa_node = 1023;

std::size_t round_up(std::size_t bytes, std::size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

[[noreturn]] void refuse(const char* what, std::size_t size) {
    throw Error("HostMemoryLimit",
                std::string("the kernel refused to ") + what + " " + format_bytes(size) +
                    " of host memory (" + std::strerror(errno) + "); ask for a smaller arena",
                {{"requested", static_cast<std::int64_t>(size)}});
}

// Maps more than asked for and trims both ends, because mmap only promises 4 KiB alignment.
std::byte* map_aligned(std::size_t size) {
    const std::size_t mapped = size + huge_page_bytes;
    void* raw =
        mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) {
        refuse("reserve addresses for", size);
    }
    auto* begin = static_cast<std::byte*>(raw);
    const auto address = reinterpret_cast<std::uintptr_t>(begin);
    auto* aligned = begin + (round_up(address, huge_page_bytes) - address);
    if (aligned > begin) munmap(begin, static_cast<std::size_t>(aligned - begin));
    std::byte* end = begin + mapped;
    if (end > aligned + size)
        munmap(aligned + size, static_cast<std::size_t>(end - aligned - size));
    return aligned;
}

bool prefer_node(std::byte* data, std::size_t size, int node) {
    if (node < 0 || node > max_numa_node) return false;
    constexpr std::size_t word_bits = sizeof(unsigned long) * CHAR_BIT;
    std::array<unsigned long, (max_numa_node + 1) / word_bits> mask{};
    mask[static_cast<std::size_t>(node) / word_bits] |=
        1UL << (static_cast<std::size_t>(node) % word_bits);
    return syscall(SYS_mbind, data, size, mempolicy_preferred, mask.data(), mask.size() * word_bits,
                   0) == 0;
}

void touch(std::byte* data, std::size_t size, unsigned threads) {
    const std::size_t share =
        round_up(std::max<std::size_t>(size / std::max(threads, 1U), 1), huge_page_bytes);
    const auto touch_share = [=](std::size_t begin) {
        const std::size_t end = std::min(size, begin + share);
        for (std::size_t i = begin; i < end; i += small_page_bytes) {
            *reinterpret_cast<volatile std::byte*>(data + i) = std::byte{0};
        }
    };
    std::vector<std::thread> workers;
    workers.reserve(threads);
    for (std::size_t begin = share; begin < size; begin += share) {
        try {
            workers.emplace_back(touch_share, begin);
        } catch (const std::system_error&) {
            touch_share(begin);  // no more threads to be had: slower, never incomplete
        }
    }
    touch_share(0);
    for (auto& worker : workers) worker.join();
}

}  // namespace

Pages::Pages(const ChunkLayout& layout, const PageOptions& options)
    : size_(round_up(std::max<std::size_t>(layout.reserved_bytes(), 1), huge_page_bytes)),
      chunk_bytes_(layout.chunk_bytes),
      threads_(options.threads) {
    data_ = map_aligned(size_);
    huge_pages_ = options.huge_pages && madvise(data_, size_, MADV_HUGEPAGE) == 0;
    madvise(data_, size_, MADV_DONTFORK);
    if (options.numa_node && prefer_node(data_, size_, *options.numa_node))
        numa_node_ = options.numa_node;
}

Pages::~Pages() { munmap(data_, size_); }

// To the end of the last huge page, as a mapping that stops amid one gets small pages there; but
// never into the next chunk.
std::size_t Pages::room_of(Range chunk) const noexcept {
    return std::min({round_up(chunk.size, huge_page_bytes), chunk_bytes_, size_ - chunk.offset});
}

void Pages::populate(Range chunk) {
    const std::size_t room = room_of(chunk);
    if (mprotect(data_ + chunk.offset, room, PROT_READ | PROT_WRITE) != 0) {
        refuse("map", chunk.size);
    }
    touch(data_ + chunk.offset, room, threads_);
}

void Pages::discard(Range chunk) noexcept {
    const std::size_t room = room_of(chunk);
    madvise(data_ + chunk.offset, room, MADV_DONTNEED);
    mprotect(data_ + chunk.offset, room, PROT_NONE);
}

}  // namespace pinferry
