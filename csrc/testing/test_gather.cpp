// The kernel's own source, run on the CPU one thread after another: its lanes exchange nothing, so
// that their order does not matter. Sanitizers see every access, misaligned ones too.
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "../native/copy_table.hpp"
#include "check.hpp"

struct Place {
    unsigned x;
};
static Place threadIdx, blockIdx, blockDim, gridDim;
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static void __threadfence_system() {}

#define __device__
#define __global__
#define __launch_bounds__(threads)
namespace kernel {
#include "../kernels/gather.cu"
}  // namespace kernel

namespace {

static_assert(sizeof(kernel::CopyUnit) == sizeof(pinferry::CopyUnit));

using Bytes = std::vector<unsigned char>;
constexpr unsigned char untouched = 0xa5;
constexpr std::size_t guard = 64;

void launch(const std::vector<kernel::CopyUnit>& units, unsigned blocks, unsigned threads) {
    gridDim.x = blocks;
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x)
            kernel::pinferry_gather(units.data(), units.size());
    }
}

Bytes random_bytes(std::size_t count) {
    static std::mt19937 random(5);
    Bytes bytes(count);
    for (auto& byte : bytes) byte = static_cast<unsigned char>(random() % 250);
    return bytes;
}

// The first address from `memory` on that is `offset` beyond a multiple of 16.
unsigned char* at_offset(unsigned char* memory, unsigned offset) {
    return memory + (16 - reinterpret_cast<std::uintptr_t>(memory) % 16) % 16 + offset;
}

std::uint64_t address(const unsigned char* pointer) {
    return reinterpret_cast<std::uint64_t>(pointer);
}

bool copies(std::size_t bytes, unsigned source_offset, unsigned target_offset) {
    Bytes source = random_bytes(bytes + 64), target(bytes + 2 * guard + 64, untouched);
    const auto* from = at_offset(source.data(), source_offset);
    auto* to = at_offset(target.data() + guard, target_offset);
    launch({{address(from), address(to), bytes}}, 1, 32);
    const auto is_untouched = [](unsigned char byte) { return byte == untouched; };
    return std::equal(from, from + bytes, to) && std::all_of(target.data(), to, is_untouched) &&
           std::all_of(to + bytes, target.data() + target.size(), is_untouched);
}

}  // namespace

TEST_CASE("every alignment of source and target, and every size up to 70 bytes") {
    for (unsigned source = 0; source < 16; ++source) {
        for (unsigned target = 0; target < 16; ++target) {
            for (std::size_t bytes = 0; bytes <= 70; ++bytes) CHECK(copies(bytes, source, target));
        }
    }
}

TEST_CASE("every alignment, where there is a whole round, several and part of one") {
    for (unsigned source = 0; source < 16; ++source) {
        for (unsigned target = 0; target < 16; ++target) {
            for (const std::size_t bytes : {255, 256, 257, 4095, 4096, 4127, 8192, 10'000})
                CHECK(copies(bytes, source, target));
        }
    }
}

TEST_CASE("grids larger and smaller than the table copy each unit once") {
    const Bytes source = random_bytes(std::size_t{100} * 300);
    for (const unsigned blocks : {1U, 2U, 7U, 40U}) {
        for (const unsigned threads : {32U, 96U, 512U}) {
            for (const std::size_t count : {0, 1, 5, 100}) {
                Bytes target(source.size(), untouched);
                Bytes expected = target;
                std::vector<kernel::CopyUnit> units;
                for (std::size_t i = 0; i < count; ++i) {
                    const std::size_t bytes = 3 * i;
                    units.push_back({address(source.data() + 300 * i),
                                     address(target.data() + 300 * i), bytes});
                    std::copy_n(source.data() + 300 * i, bytes, expected.data() + 300 * i);
                }
                launch(units, blocks, threads);
                CHECK(target == expected);
            }
        }
    }
}
