#pragma once

#include <memory>
#include <new>
#include <string>

#include "driver.hpp"
#include "process.hpp"

namespace pinferry::cuda {

// A retained primary context: the one PyTorch and CuPy use too. Everything made under it holds a
// shared_ptr to it, so that it is released last.
class PrimaryContext {
  public:
    // Throws Error("DeviceNotFound") for an index that does not exist, with the number there are.
    static std::shared_ptr<PrimaryContext> retain(int index);
    ~PrimaryContext();
    PrimaryContext(const PrimaryContext&) = delete;
    PrimaryContext& operator=(const PrimaryContext&) = delete;

    const Driver& driver() const noexcept { return driver_; }
    DeviceOrdinal ordinal() const noexcept { return ordinal_; }
    const ProcessTag& process() const noexcept { return process_; }

    // Makes the context current on this thread for a scope.
    class Scope {
      public:
        // Throws Error("ForkedProcess") or Error("DriverCallFailed") where it cannot.
        explicit Scope(const PrimaryContext& context);
        // For clean-up, which may run after a fork or after the driver has shut down: ok() tells.
        Scope(const PrimaryContext& context, std::nothrow_t) noexcept;
        ~Scope();
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;
        bool ok() const noexcept { return pushed_; }

      private:
        const PrimaryContext& context_;
        bool pushed_ = false;
    };

  private:
    PrimaryContext(const Driver& driver, int index);

    const Driver& driver_;
    DeviceOrdinal ordinal_ = 0;
    Context context_ = nullptr;
    ProcessTag process_;
};

// Whether registered memory has the host's own address on the device too; with the context current.
bool maps_host_memory(const PrimaryContext& context);

}  // namespace pinferry::cuda
