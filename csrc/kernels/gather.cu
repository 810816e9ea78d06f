// Copies many small ranges in one launch, between device memory and pinned host memory that the
// device reads and writes in place. Compiled at run time by NVRTC, so it includes nothing.
//
// A warp takes one unit at a time. What bounds it is the latency of the link, 1 to 2 us, so each
// lane has eight loads under way before it stores the first: 4 KiB a warp. At 55 GB/s about 110 KB
// must be in flight; 16 blocks of 256 threads have 512 KB.
namespace {

constexpr unsigned warp_lanes = 32;
constexpr unsigned loads_in_flight = 8;  // of each lane
constexpr unsigned half_warp = 16;       // more than the bytes of any head or tail

// One entry of the table; csrc/native/copy_table.hpp declares the same.
struct CopyUnit {
    unsigned long long source;
    unsigned long long target;
    unsigned long long bytes;
};

// One round of a warp: every load is issued before the first store. In a whole round no lane asks
// where the words end.
template <bool whole, typename Word>
__device__ void copy_round(const Word* source, Word* target, unsigned long long first,
                           unsigned long long count) {
    Word held[loads_in_flight] = {};
#pragma unroll
    for (unsigned k = 0; k < loads_in_flight; ++k) {
        const unsigned long long at = first + k * warp_lanes;
        if (whole || at < count) held[k] = source[at];
    }
#pragma unroll
    for (unsigned k = 0; k < loads_in_flight; ++k) {
        const unsigned long long at = first + k * warp_lanes;
        if (whole || at < count) target[at] = held[k];
    }
}

template <typename Word>
__device__ void copy_words(const Word* source, Word* target, unsigned long long count,
                           unsigned lane) {
    constexpr unsigned round = warp_lanes * loads_in_flight;
    unsigned long long done = 0;
#pragma unroll 1
    for (; done + round <= count; done += round) {
        copy_round<true>(source, target, done + lane, count);
    }
    if (done < count) copy_round<false>(source, target, done + lane, count);
}

// Words where source and target are congruent modulo their size; what is left before and behind
// them bytewise. The first half of the warp takes the head and the second the tail, one byte a
// lane, loaded before the words so that their latency is not paid twice.
template <typename Word>
__device__ void copy_unit(const CopyUnit& unit, unsigned lane) {
    using Byte = unsigned char;
    const auto* source = reinterpret_cast<const Byte*>(unit.source);
    auto* target = reinterpret_cast<Byte*>(unit.target);
    unsigned long long head = (0 - unit.target) % sizeof(Word);
    if (head > unit.bytes) head = unit.bytes;
    const unsigned long long words = (unit.bytes - head) / sizeof(Word);
    const unsigned long long behind = head + words * sizeof(Word);
    const bool at_head = lane < half_warp;
    const unsigned long long edge = at_head ? lane : behind + (lane - half_warp);
    const bool has_edge = edge < (at_head ? head : unit.bytes);
    Byte held = 0;
    if (has_edge) held = source[edge];
    copy_words(reinterpret_cast<const Word*>(source + head), reinterpret_cast<Word*>(target + head),
               words, lane);
    if (has_edge) target[edge] = held;
}

__device__ void copy_with_widest_words(const CopyUnit& unit, unsigned lane) {
    const unsigned long long difference = unit.source ^ unit.target;
    if (difference % 16 == 0) {
        copy_unit<uint4>(unit, lane);
    } else if (difference % 8 == 0) {
        copy_unit<unsigned long long>(unit, lane);
    } else if (difference % 4 == 0) {
        copy_unit<unsigned>(unit, lane);
    } else if (difference % 2 == 0) {
        copy_unit<unsigned short>(unit, lane);
    } else {
        copy_unit<unsigned char>(unit, lane);
    }
}

}  // namespace

// Blocks are whole warps. The bound is what leaves each thread the registers for its loads.
extern "C" __global__ void __launch_bounds__(512)
    pinferry_gather(const CopyUnit* units, unsigned long long count) {
    const unsigned lane = threadIdx.x % warp_lanes;
    const unsigned warps_a_block = blockDim.x / warp_lanes;
    const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * warps_a_block;
    unsigned long long at =
        static_cast<unsigned long long>(blockIdx.x) * warps_a_block + threadIdx.x / warp_lanes;
    if (at >= count) return;
    // The table lies across the link as well: the next entry is fetched while this one is copied.
    CopyUnit next = units[at];
    for (; at < count; at += step) {
        const CopyUnit unit = next;
        if (at + step < count) next = units[at + step];
        copy_with_widest_words(unit, lane);
    }
    // What was written to host memory is seen there once the event behind this launch is complete.
    __threadfence_system();
}
