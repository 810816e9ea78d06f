#pragma once

#include <cstddef>

namespace pinferry {

// How the copies of one direction are split. What is measured on a device replaces these.
struct CopyTuning {
    // Ranges of at least this many bytes go by DMA each on their own, about 2 us of submission:
    // 256 KiB take more than twice as long on a PCIe 5.0 link.
    std::size_t threshold_bytes = std::size_t{256} << 10;
    // Of the kernel for the others. With 256 threads each, 32 blocks have 1 MiB of loads in flight,
    // where 110 KB hide the link's latency; more would only take room from what else runs.
    unsigned blocks = 32;
    // Larger ranges go in pieces of this many bytes, so that an urgent copy waits for one piece and
    // not for gigabytes. On a PCIe 5.0 link one takes 0.6 ms, and the cut some microseconds.
    std::size_t piece_bytes = std::size_t{32} << 20;
};

}  // namespace pinferry
