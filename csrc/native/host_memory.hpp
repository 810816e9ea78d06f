#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver.hpp"
#include "pages.hpp"

namespace pinferry {

// Host memory for an arena, as chunks. One chunk is one registration with the driver, and no copy
// may cross from one into the next.
class HostMemory {
  public:
    virtual ~HostMemory() = default;

    std::size_t size() const noexcept { return size_; }
    std::size_t chunk_bytes() const noexcept { return chunk_bytes_; }

    // Address of the byte at `offset` < size().
    virtual std::byte* address(std::size_t offset) const noexcept = 0;

    // "registered", "driver" or "unpinned".
    virtual const char* backend() const noexcept = 0;
    // Facts about how the memory was made, for people.
    virtual std::string describe() const = 0;
    // Bytes the operating system can no longer move or swap.
    virtual std::size_t locked_bytes() const noexcept = 0;

  protected:
    HostMemory(std::size_t size, std::size_t chunk_bytes)
        : size_(size), chunk_bytes_(chunk_bytes) {}

    std::size_t size_;
    std::size_t chunk_bytes_;
};

// Ordinary pages: the CPU device has no link, so nothing needs pinning.
class UnpinnedMemory final : public HostMemory {
  public:
    UnpinnedMemory(std::size_t bytes, std::size_t chunk_bytes, const PageOptions& options);

    std::byte* address(std::size_t offset) const noexcept override {
        return pages_.data() + offset;
    }
    const char* backend() const noexcept override { return "unpinned"; }
    std::string describe() const override;
    std::size_t locked_bytes() const noexcept override { return 0; }

  private:
    Pages pages_;
};

// Pages registered with the driver chunk by chunk. Construction rolls back every chunk when one
// fails. Must be made and destroyed with the device's context current.
class RegisteredMemory final : public HostMemory {
  public:
    // Throws Error("RegistrationFailed") with the driver's code and the chunk that failed.
    RegisteredMemory(const cuda::Driver& driver, std::size_t bytes, std::size_t chunk_bytes,
                     const PageOptions& options);
    ~RegisteredMemory() override;

    std::byte* address(std::size_t offset) const noexcept override {
        return pages_.data() + offset;
    }
    const char* backend() const noexcept override { return "registered"; }
    std::string describe() const override;
    std::size_t locked_bytes() const noexcept override { return registered_; }

  private:
    void unregister_all() noexcept;

    const cuda::Driver& driver_;
    Pages pages_;
    std::size_t registered_ = 0;  // bytes from the start that are registered
};

// The driver's own pinned allocations, one a chunk: five to fifteen times slower to make, but
// allowed where registration is not (confidential computing).
class DriverMemory final : public HostMemory {
  public:
    DriverMemory(const cuda::Driver& driver, std::size_t bytes, std::size_t chunk_bytes,
                 std::string reason);
    ~DriverMemory() override;

    std::byte* address(std::size_t offset) const noexcept override {
        return chunks_[offset / chunk_bytes_] + offset % chunk_bytes_;
    }
    const char* backend() const noexcept override { return "driver"; }
    std::string describe() const override;
    std::size_t locked_bytes() const noexcept override { return size_; }

  private:
    void free_all() noexcept;

    const cuda::Driver& driver_;
    std::vector<std::byte*> chunks_;
    std::string reason_;
};

}  // namespace pinferry
