#include "cuda_device.hpp"

#include <array>
#include <cstdio>

#include "blocking.hpp"
#include "cuda_stream.hpp"
#include "error.hpp"

namespace pinferry {
namespace {

cuda::Stream native(StreamHandle stream) { return reinterpret_cast<cuda::Stream>(stream); }

std::string format_uuid(const cuda::Uuid& uuid) {
    std::string text = "GPU-";
    for (std::size_t i = 0; i < sizeof(uuid.bytes); ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        std::array<char, 3> hex{};
        std::snprintf(hex.data(), hex.size(), "%02x", static_cast<unsigned char>(uuid.bytes[i]));
        text += hex.data();
    }
    return text;
}

}  // namespace

CudaDevice::CudaDevice(int index)
    : index_(index),
      context_(cuda::PrimaryContext::retain(index)),
      driver_(context_->driver()),
      events_(std::make_shared<cuda::EventPool>(context_)),
      latches_(std::make_shared<cuda::LatchPool>(context_)),
      copies_(context_, events_),
      streams_(context_) {
    const Scope scope(*context_);
    read_identity();
}

CudaDevice::~CudaDevice() { releases_.finish(); }

void CudaDevice::read_identity() {
    std::array<char, 128> text{};
    cuda::check(
        driver_, "cuDeviceGetName",
        driver_.device_name(text.data(), static_cast<int>(text.size()), context_->ordinal()));
    name_ = text.data();
    cuda::check(
        driver_, "cuDeviceGetPCIBusId",
        driver_.device_pci_bus_id(text.data(), static_cast<int>(text.size()), context_->ordinal()));
    pci_bus_id_ = text.data();
    cuda::Uuid uuid{};
    cuda::check(driver_, "cuDeviceGetUuid", driver_.device_uuid(&uuid, context_->ordinal()));
    uuid_ = format_uuid(uuid);
}

StreamHandle CudaDevice::copy_stream(Lane lane) {
    return reinterpret_cast<StreamHandle>(streams_[lane]);
}

std::shared_ptr<Event> CudaDevice::record(StreamHandle stream, bool timed) {
    const Scope scope(*context_);
    return std::make_shared<cuda::CudaEvent>(events_, native(stream), timed);
}

void CudaDevice::wait(StreamHandle stream, const Event& event) {
    const Scope scope(*context_);
    const auto handle = static_cast<const cuda::CudaEvent&>(event).handle();
    cuda::check(driver_, "cuStreamWaitEvent", driver_.stream_wait_event(native(stream), handle, 0));
}

double CudaDevice::elapsed_ms(const Event& start, const Event& end) const {
    const Scope scope(*context_);
    float elapsed = 0;
    cuda::check(driver_, "cuEventElapsedTime",
                driver_.event_elapsed(&elapsed, static_cast<const cuda::CudaEvent&>(start).handle(),
                                      static_cast<const cuda::CudaEvent&>(end).handle()));
    return elapsed;
}

void CudaDevice::copy(Lane lane, const std::vector<CopyRange>& ranges, bool pinned) {
    const Scope scope(*context_);
    if (pinned) {
        copies_.queue(lane, ranges, streams_[lane]);
    } else {
        copies_.queue_unpinned(lane, ranges, streams_[lane]);
    }
}

void CudaDevice::use_kernel(cuda::Function function, unsigned blocks, unsigned threads) {
    const Scope scope(*context_);
    copies_.use_kernel(function, blocks, threads);
}

bool CudaDevice::maps_host_memory() const {
    const Scope scope(*context_);
    return cuda::maps_host_memory(*context_);
}

void CudaDevice::drain() noexcept {
    const Scope scope(*context_, std::nothrow);
    if (!scope.ok()) return;
    copies_.drain();
    streams_.drain();
}

std::unique_ptr<HostMemory> CudaDevice::make_host_memory(const HostMemoryRequest& request) {
    const auto chunks = request.first_chunks();
    if (request.backend == Backend::unpinned) {
        auto memory = std::make_unique<UnpinnedMemory>(request.layout, request.pages);
        make_all(*memory, chunks);
        return memory;
    }
    const Scope scope(*context_);
    const auto from_driver = [&](const std::string& reason) {
        auto memory = std::make_unique<DriverMemory>(driver_, request.layout, reason);
        make_all(*memory, chunks);
        return memory;
    };
    if (request.backend == Backend::driver) return from_driver("it was asked for");
    try {
        auto memory = std::make_unique<RegisteredMemory>(driver_, request.layout, request.pages);
        make_all(*memory, chunks);
        return memory;
    } catch (const Error& error) {
        const bool forbidden = error.kind() == "RegistrationFailed" && !error.fields().empty() &&
                               error.fields().front().second == cuda::error_not_supported;
        if (!forbidden || request.backend == Backend::registered) throw;
        return from_driver("cuMemHostRegister is not permitted here (error 801)");
    }
}

void CudaDevice::make_chunk(HostMemory& memory, Range chunk) {
    const Scope scope(*context_);
    memory.make(chunk);
}

bool CudaDevice::drop_chunk(HostMemory& memory, Range chunk) noexcept {
    // After a fork or the driver's end there is nothing to give back to.
    const Scope scope(*context_, std::nothrow);
    return scope.ok() && memory.drop(chunk);
}

Address CudaDevice::allocate(std::size_t bytes) {
    const Scope scope(*context_);
    cuda::DevicePtr address = 0;
    cuda::check(driver_, "cuMemAlloc", driver_.memory_alloc(&address, bytes == 0 ? 1 : bytes));
    return address;
}

void CudaDevice::free_now(Address address) noexcept {
    const BlockingSection blocking;
    const Scope scope(*context_, std::nothrow);
    if (scope.ok()) driver_.memory_free(address);
}

std::unique_ptr<OwnedStream> CudaDevice::create_stream() {
    return std::make_unique<CudaStream>(latches_);
}

}  // namespace pinferry
