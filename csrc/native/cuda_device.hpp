#pragma once

#include "cuda_copies.hpp"
#include "cuda_event.hpp"
#include "cuda_lane_streams.hpp"
#include "cuda_latch.hpp"
#include "device.hpp"

namespace pinferry {

// One GPU through the driver: the primary context, non-blocking copy streams, pooled events,
// and the fastest way there is for ranges of each size.
class CudaDevice final : public Device {
  public:
    // Throws Error("DriverUnavailable"), Error("DeviceNotFound") or Error("DriverCallFailed").
    explicit CudaDevice(int index);
    ~CudaDevice() override;

    const char* kind() const noexcept override { return "cuda"; }
    int index() const noexcept override { return index_; }
    std::string name() const override { return name_; }
    std::string uuid() const override { return uuid_; }
    std::string pci_bus_id() const override { return pci_bus_id_; }

    StreamHandle copy_stream(Lane lane) override;
    std::shared_ptr<Event> record(StreamHandle stream, bool timed) override;
    void wait(StreamHandle stream, const Event& event) override;
    double elapsed_ms(const Event& start, const Event& end) const override;
    void copy(Lane lane, const std::vector<CopyRange>& ranges, bool pinned) override;
    const char* copy_tier() const override { return copies_.tier(); }
    bool maps_host_memory() const override;
    void drain() noexcept override;
    std::unique_ptr<HostMemory> make_host_memory(const HostMemoryRequest& request) override;
    void make_chunk(HostMemory& memory, Range chunk) override;
    bool drop_chunk(HostMemory& memory, Range chunk) noexcept override;
    Address allocate(std::size_t bytes) override;
    std::unique_ptr<OwnedStream> create_stream() override;

    // Copies small ranges by a kernel from now on: `function` is csrc/kernels/gather.cu, loaded in
    // the primary context for as long as this device lives. Launches it once, empty.
    // Throws Error("InvalidArgument") or Error("DriverCallFailed"), and then changes nothing.
    void use_kernel(cuda::Function function, unsigned blocks, unsigned threads);
    // Throws Error("InvalidArgument") for no blocks, or pieces of no bytes.
    void tune_copies(Direction direction, CopyTuning tuning) { copies_.tune(direction, tuning); }
    CopyTuning copy_tuning(Direction direction) const { return copies_.tuning(direction); }

  protected:
    void free_now(Address address) noexcept override;

  private:
    using Scope = cuda::PrimaryContext::Scope;

    void read_identity();

    int index_;
    std::shared_ptr<cuda::PrimaryContext> context_;
    const cuda::Driver& driver_;
    std::shared_ptr<cuda::EventPool> events_;
    std::shared_ptr<cuda::LatchPool> latches_;
    cuda::Copies copies_;
    std::string name_;
    std::string uuid_;
    std::string pci_bus_id_;
    cuda::LaneStreams streams_;
};

}  // namespace pinferry
