#pragma once

#include "host_stream.hpp"

namespace pinferry {

// The CPU as a device: ordinary memory as device memory, worker threads as copy streams, memcpy as
// DMA, under the same ordering rules as CUDA. The default where there is no GPU, and the double
// under which ordering is tested.
class HostDevice final : public Device {
  public:
    ~HostDevice() override { releases_.finish(); }

    const char* kind() const noexcept override { return "cpu"; }
    int index() const noexcept override { return 0; }
    std::string name() const override { return "CPU"; }
    std::string uuid() const override { return ""; }
    std::string pci_bus_id() const override { return ""; }

    StreamHandle copy_stream(Direction direction) const noexcept override;
    std::shared_ptr<Event> record(StreamHandle stream, bool timed) override;
    void wait(StreamHandle stream, const Event& event) override;
    double elapsed_ms(const Event& start, const Event& end) const override;
    void copy(Direction direction, const std::vector<CopyRange>& ranges) override;
    const char* copy_tier() const override { return "plain"; }
    void drain() noexcept override;
    std::unique_ptr<HostMemory> make_host_memory(const HostMemoryRequest& request) override;
    void make_chunk(HostMemory& memory, Range chunk) override;
    bool drop_chunk(HostMemory& memory, Range chunk) noexcept override;
    Address allocate(std::size_t bytes) override;
    std::unique_ptr<OwnedStream> create_stream() override;

  protected:
    void free_now(Address address) noexcept override;

  private:
    HostStream& stream(Direction direction) noexcept {
        return direction == Direction::to_host ? to_host_ : to_device_;
    }

    HostStream to_host_;
    HostStream to_device_;
};

}  // namespace pinferry
