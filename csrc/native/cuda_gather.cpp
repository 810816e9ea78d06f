#include "cuda_gather.hpp"

#include <algorithm>

#include "error.hpp"

namespace pinferry::cuda {
namespace {

constexpr unsigned warp_lanes = 32;
constexpr unsigned most_threads = 512;  // what the kernel is bounded to

}  // namespace

GatherKernel::GatherKernel(std::shared_ptr<PrimaryContext> context,
                           std::shared_ptr<EventPool> events, Function function, unsigned threads)
    : context_(std::move(context)),
      driver_(context_->driver()),
      events_(std::move(events)),
      tables_(context_),
      streams_(context_) {
    // One for each lane: later, memory might have to wait for the device.
    tables_.prepare(Lane::count);
    use(function, threads);
}

void GatherKernel::use(Function function, unsigned threads) {
    if (!function || threads == 0 || threads > most_threads || threads % warp_lanes != 0) {
        throw Error("InvalidArgument",
                    "a copy kernel needs the handle of a loaded function and 32 to 512 threads a "
                    "block in whole warps, not " +
                        std::to_string(threads));
    }
    if (!maps_host_memory(*context_)) {
        throw Error("InvalidArgument",
                    "this GPU does not see registered memory at the host's own address, so no "
                    "kernel can copy from or to an arena");
    }
    // The driver may load a kernel only when it is first launched, and wait for the device then.
    // An empty table makes it do so now.
    const Code code{function, threads};
    start(code, nullptr, 0, 1, streams_[Direction::to_host]);
    const std::lock_guard lock(mutex_);
    code_ = code;
}

GatherKernel::Code GatherKernel::code() const {
    const std::lock_guard lock(mutex_);
    return code_;
}

void GatherKernel::start(const Code& code, const CopyUnit* units, std::size_t count,
                         unsigned blocks, Stream stream) {
    unsigned long long entries = count;
    std::array<void*, 2> arguments{&units, &entries};
    check(driver_, "cuLaunchKernel",
          driver_.launch_kernel(code.function, blocks, 1, 1, code.threads, 1, 1, 0, stream,
                                arguments.data(), nullptr));
}

std::shared_ptr<CudaEvent> GatherKernel::launch(Lane lane, const std::vector<CopyRange>& ranges,
                                                Stream stream, unsigned blocks) {
    const Stream own = streams_[lane];
    const Code code = this->code();
    const std::size_t units = count_units(ranges);
    const Table table = tables_.take(units);
    std::shared_ptr<CudaEvent> end;
    bool started = false;
    try {
        write_units(lane.direction, ranges, table.units);
        const CudaEvent fork(events_, stream, false);
        check(driver_, "cuStreamWaitEvent", driver_.stream_wait_event(own, fork.handle(), 0));
        const std::size_t warps = code.threads / warp_lanes;
        const std::size_t busy = std::min<std::size_t>(blocks, (units + warps - 1) / warps);
        start(code, table.units, units, static_cast<unsigned>(busy), own);
        started = true;
        end = std::make_shared<CudaEvent>(events_, own, false);
    } catch (...) {
        // Without an event behind it only the stream tells when the table is no longer read. A
        // device that reports an error never does; then the table is lost.
        if (!started || driver_.stream_synchronize(own) == success)
            tables_.give_back(table, nullptr);
        throw;
    }
    tables_.give_back(table, end);
    return end;
}

void GatherKernel::drain() noexcept { streams_.drain(); }

}  // namespace pinferry::cuda
