#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "chunk_layout.hpp"
#include "driver.hpp"
#include "pages.hpp"

namespace pinferry {

// Host memory for an arena, chunk by chunk. One chunk is one registration with the driver, and no
// copy may cross from one into the next. Whoever makes a chunk drops it before the end. Calls for
// different chunks may be made from several threads; where a driver is involved, under its context.
class HostMemory {
  public:
    virtual ~HostMemory() = default;

    // Makes a chunk present, and pins it. Blocks. Throws Error("HostMemoryLimit") or
    // Error("RegistrationFailed"), and then nothing of the chunk is left.
    virtual void make(Range chunk) = 0;
    // Gives it back to the system. A driver waits until its device is idle; where it refuses, this
    // returns false, and the chunk must never be used or unmapped again.
    virtual bool drop(Range chunk) noexcept = 0;

    // Address of the byte at `offset`, which lies in a chunk that is made.
    virtual std::byte* address(std::size_t offset) const noexcept = 0;

    // "registered", "driver" or "unpinned".
    virtual const char* backend() const noexcept = 0;
    // Facts about how the memory is made, for people.
    virtual std::string describe() const = 0;
    // Whether the operating system can no longer move or swap what is made.
    virtual bool pinned() const noexcept = 0;
};

// Makes several chunks, or none: a failure drops those made before and says how many there were.
void make_all(HostMemory& memory, const std::vector<Range>& chunks);

// Ordinary pages: the CPU device has no link, so nothing needs pinning.
class UnpinnedMemory final : public HostMemory {
  public:
    UnpinnedMemory(const ChunkLayout& layout, const PageOptions& options)
        : pages_(layout, options) {}

    void make(Range chunk) override { pages_.populate(chunk); }
    bool drop(Range chunk) noexcept override {
        pages_.discard(chunk);
        return true;
    }
    std::byte* address(std::size_t offset) const noexcept override {
        return pages_.data() + offset;
    }
    const char* backend() const noexcept override { return "unpinned"; }
    std::string describe() const override;
    bool pinned() const noexcept override { return false; }

  private:
    Pages pages_;
};

// Pages registered with the driver.
class RegisteredMemory final : public HostMemory {
  public:
    RegisteredMemory(const cuda::Driver& driver, const ChunkLayout& layout,
                     const PageOptions& options)
        : driver_(driver), pages_(layout, options) {}

    void make(Range chunk) override;
    bool drop(Range chunk) noexcept override;
    std::byte* address(std::size_t offset) const noexcept override {
        return pages_.data() + offset;
    }
    const char* backend() const noexcept override { return "registered"; }
    std::string describe() const override;
    bool pinned() const noexcept override { return true; }

  private:
    const cuda::Driver& driver_;
    Pages pages_;
};

// The driver's own pinned allocations, one a chunk: five to fifteen times slower to make, but
// allowed where registration is not (confidential computing).
class DriverMemory final : public HostMemory {
  public:
    DriverMemory(const cuda::Driver& driver, const ChunkLayout& layout, std::string reason)
        : driver_(driver),
          chunk_bytes_(layout.chunk_bytes),
          chunks_(layout.chunks.size(), nullptr),
          reason_(std::move(reason)) {}

    void make(Range chunk) override;
    bool drop(Range chunk) noexcept override;
    std::byte* address(std::size_t offset) const noexcept override {
        return chunks_[offset / chunk_bytes_] + offset % chunk_bytes_;
    }
    const char* backend() const noexcept override { return "driver"; }
    std::string describe() const override;
    bool pinned() const noexcept override { return true; }

  private:
    const cuda::Driver& driver_;
    std::size_t chunk_bytes_;
    std::vector<std::byte*> chunks_;  // by index; null where there is none
    std::string reason_;
};

}  // namespace pinferry
