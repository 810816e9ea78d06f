// Needs PINFERRY_FAKE_DRIVER: the path of the fake driver, built the same way as this program.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../native/arena.hpp"
#include "../native/cuda_device.hpp"
#include "../native/driver.hpp"
#include "../native/error.hpp"
#include "../native/transfer.hpp"
#include "check.hpp"

using namespace pinferry;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

std::string fake_driver() {
    const char* path = std::getenv("PINFERRY_FAKE_DRIVER");
    if (!path) throw std::runtime_error("PINFERRY_FAKE_DRIVER is not set; run `make native`");
    return path;
}

std::shared_ptr<CudaDevice> make_device() {
    cuda::Driver::use_library(fake_driver());
    return std::make_shared<CudaDevice>(0);
}

std::shared_ptr<Arena> make_arena(const std::shared_ptr<Device>& device, std::size_t bytes) {
    HostMemoryRequest request;
    request.layout = lay_out_chunks(bytes, 0, mib);
    request.at_once = request.layout.initial;
    request.pages.huge_pages = false;
    return Arena::create(device, request);
}

std::string kind_of_failure(int index) {
    try {
        CudaDevice device(index);
    } catch (const Error& error) {
        return error.kind();
    }
    return "";
}

// Sends a pattern to the device and back through other blocks; true if it came back whole.
bool round_trip(const std::shared_ptr<Device>& device, const std::shared_ptr<Arena>& arena,
                unsigned char seed) {
    constexpr std::size_t bytes = 2 * mib + 77;
    const auto stream = device->create_stream();
    const Address memory = device->allocate(bytes);
    const auto dealt = arena->allocate_extents({bytes, bytes}, 10s);
    std::vector<Piece> in, out;
    std::size_t place = 0;
    for (const auto& block : dealt[0]) {
        std::memset(block->data(), seed, block->bytes());
        std::memcpy(block->data(), &place, std::min(block->bytes(), sizeof(place)));
        in.push_back({block, memory + place, block->bytes()});
        place += block->bytes();
    }
    place = 0;
    for (const auto& block : dealt[1]) {
        out.push_back({block, memory + place, block->bytes()});
        place += block->bytes();
    }
    const Ticket reload = submit(device, Direction::to_device, in, {stream->handle()});
    reload.wait(stream->handle());
    const Ticket offload = submit(device, Direction::to_host, out, {stream->handle()});
    const bool done = offload.synchronize(10s);
    std::string sent, got;
    const auto append = [](std::string& text, const Block& block) {
        text.append(reinterpret_cast<const char*>(block.data()), block.bytes());
    };
    for (const auto& block : dealt[0]) append(sent, *block);
    for (const auto& block : dealt[1]) append(got, *block);
    device->free(memory);
    return done && reload.done() && offload.elapsed_ms().has_value() && sent == got;
}

// The same with many blocks of a few hundred bytes, which are no neighbours on the device.
bool small_round_trip(const std::shared_ptr<Device>& device, const std::shared_ptr<Arena>& arena,
                      unsigned char seed) {
    constexpr std::size_t count = 50, bytes = 700, stride = 713;
    const Address memory = device->allocate(count * stride);
    const auto dealt = arena->allocate_extents(std::vector<std::size_t>(2 * count, bytes), 10s);
    std::vector<Piece> in, out;
    for (std::size_t i = 0; i < count; ++i) {
        std::memset(dealt[i][0]->data(), static_cast<int>(seed + i), bytes);
        in.push_back({dealt[i][0], memory + i * stride, bytes});
        out.push_back({dealt[count + i][0], memory + i * stride, bytes});
    }
    const Ticket reload = submit(device, Direction::to_device, in, {});
    const Ticket offload = submit(device, Direction::to_host, out, {}, {reload});
    bool same = offload.synchronize(10s) && reload.done();
    for (std::size_t i = 0; i < count; ++i) {
        same &= std::memcmp(in[i].block->data(), out[i].block->data(), bytes) == 0;
    }
    device->free(memory);
    return same;
}

}  // namespace

TEST_CASE("a driver that is missing is named, and one that is there is loaded after it") {
    cuda::Driver::use_library("/nonexistent/libcuda.so");
    CHECK(cuda::Driver::status().find("/nonexistent/libcuda.so") != std::string::npos);
    CHECK_THROWS(Error, cuda::Driver::get());
    CHECK(kind_of_failure(0) == "DriverUnavailable");
    cuda::Driver::use_library(fake_driver());
    CHECK(cuda::Driver::status() == "ok");
    CHECK(&cuda::Driver::get() == &cuda::Driver::get());
}

TEST_CASE("a library without entry points is refused") {
    cuda::Driver::use_library("libm.so.6");
    CHECK(cuda::Driver::status().find("cuInit") != std::string::npos);
    CHECK(kind_of_failure(0) == "DriverUnavailable");
}

TEST_CASE("an index that does not exist is refused") {
    make_device();
    CHECK(kind_of_failure(0).empty());
    CHECK(kind_of_failure(1) == "DeviceNotFound");
    CHECK(kind_of_failure(-1) == "DeviceNotFound");
}

TEST_CASE("bytes go to a GPU and back over several registrations") {
    const auto device = make_device();
    const auto arena = make_arena(device, 8 * mib);
    CHECK(std::string(arena->memory().backend()) == "registered");
    CHECK(arena->stats().locked_bytes == 8 * mib);
    CHECK(round_trip(device, arena, 3));
    CHECK(arena->stats().free_bytes == 8 * mib);
}

TEST_CASE("threads share one GPU, its events and its arena") {
    const auto device = make_device();
    const auto arena = make_arena(device, 16 * mib);
    std::vector<std::thread> threads;
    for (unsigned char seed = 1; seed <= 3; ++seed) {
        threads.emplace_back([&, seed] {
            for (int round = 0; round < 5; ++round) CHECK(round_trip(device, arena, seed));
        });
    }
    for (auto& thread : threads) thread.join();
    CHECK(arena->stats().free_bytes == 16 * mib);
}

TEST_CASE("threads share one GPU's kernel and its tables") {
    const auto device = make_device();
    device->use_kernel(reinterpret_cast<cuda::Function>(1), 4, 64);
    CHECK(std::string(device->copy_tier()) == "kernel");
    const auto arena = make_arena(device, 8 * mib);
    std::vector<std::thread> threads;
    for (unsigned char seed = 1; seed <= 3; ++seed) {
        threads.emplace_back([&, seed] {
            for (int round = 0; round < 10; ++round) CHECK(small_round_trip(device, arena, seed));
        });
    }
    for (int round = 0; round < 5; ++round) {
        device->use_kernel(reinterpret_cast<cuda::Function>(2), 8, 128);
        device->tune_copies(Direction::to_host, {std::size_t{64} << 10, 2});
    }
    for (auto& thread : threads) thread.join();
    CHECK(arena->stats().free_bytes == 8 * mib);
}

TEST_CASE("a latch on a GPU stream holds an offload, and everything may die before its ticket") {
    Ticket ticket;
    {
        const auto device = make_device();
        const auto arena = make_arena(device, mib);
        const auto block = arena->allocate(512, 0ns);
        const auto stream = device->create_stream();
        const Address memory = device->allocate(512);
        stream->hold();
        stream->fill(memory, 7, 512);
        ticket = submit(device, Direction::to_host, {{block, memory, 512}}, {stream->handle()});
        CHECK(!ticket.synchronize(20ms));
        CHECK_THROWS(Error, (stream->hold(), 0));
        stream->release();
        CHECK(ticket.synchronize(10s));
        const auto* bytes = reinterpret_cast<const unsigned char*>(block->data());
        CHECK(std::all_of(bytes, bytes + 512, [](unsigned char byte) { return byte == 7; }));
        device->free(memory);
    }
    CHECK(ticket.done());
}

TEST_CASE("objects keep the driver they were made with") {
    const auto device = make_device();
    const auto arena = make_arena(device, 8 * mib);
    cuda::Driver::use_library("/nonexistent/libcuda.so");
    CHECK(round_trip(device, arena, 9));
}
