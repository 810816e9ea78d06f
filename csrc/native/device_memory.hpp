#pragma once

#include <memory>

#include "device.hpp"

namespace pinferry {

// Device memory with one owner, outside PyTorch's allocator: for benchmarks and tests.
class DeviceMemory {
  public:
    DeviceMemory(std::shared_ptr<Device> device, std::size_t bytes)
        : device_(std::move(device)), bytes_(bytes), address_(device_->allocate(bytes)) {}
    ~DeviceMemory() { device_->free(address_); }
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;

    Address address() const noexcept { return address_; }
    std::size_t bytes() const noexcept { return bytes_; }

  private:
    std::shared_ptr<Device> device_;
    std::size_t bytes_;
    Address address_;
};

}  // namespace pinferry
