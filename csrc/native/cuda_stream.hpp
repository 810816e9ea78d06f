#pragma once

#include "cuda_latch.hpp"
#include "device.hpp"

namespace pinferry {

// A non-blocking stream that the caller owns. A latch is a word of pinned memory that the stream
// waits for on the device, so no driver thread is held up with it.
class CudaStream final : public OwnedStream {
  public:
    explicit CudaStream(std::shared_ptr<cuda::LatchPool> latches);
    ~CudaStream() override;

    StreamHandle handle() const noexcept override {
        return reinterpret_cast<StreamHandle>(stream_);
    }
    void fill(Address target, unsigned char value, std::size_t bytes) override;
    void copy(Address target, Address source, std::size_t bytes) override;
    void hold() override;
    void release() noexcept override;
    void synchronize() override;

  private:
    std::shared_ptr<cuda::LatchPool> latches_;
    const cuda::PrimaryContext& context_;
    const cuda::Driver& driver_;
    cuda::Stream stream_ = nullptr;
    std::uint32_t* latch_ = nullptr;  // counts latches opened; the device reads it
    std::uint32_t held_ = 0;          // counts latches set
};

}  // namespace pinferry
