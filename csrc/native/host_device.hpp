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

    StreamHandle copy_stream(Lane lane) override;
    std::shared_ptr<Event> record(StreamHandle stream, bool timed) override;
    void wait(StreamHandle stream, const Event& event) override;
    double elapsed_ms(const Event& start, const Event& end) const override;
    void copy(Lane lane, const std::vector<CopyRange>& ranges, bool pinned) override;
    const char* copy_tier() const override { return "plain"; }
    bool maps_host_memory() const override { return true; }
    void drain() noexcept override;
    std::unique_ptr<HostMemory> make_host_memory(const HostMemoryRequest& request) override;
    void make_chunk(HostMemory& memory, Range chunk) override;
    bool drop_chunk(HostMemory& memory, Range chunk) noexcept override;
    Address allocate(std::size_t bytes) override;
    std::unique_ptr<OwnedStream> create_stream() override;

  protected:
    void free_now(Address address) noexcept override;

  private:
    HostStream& stream(Lane lane);

    // Made when first used: most devices never have anything urgent, and each is a thread.
    std::mutex mutex_;
    std::array<std::unique_ptr<HostStream>, Lane::count> streams_;  // guarded by mutex_
};

}  // namespace pinferry
