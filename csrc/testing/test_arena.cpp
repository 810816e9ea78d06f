#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <random>
#include <thread>
#include <vector>

#include "../native/arena.hpp"
#include "../native/error.hpp"
#include "../native/host_device.hpp"
#include "../native/transfer.hpp"
#include "check.hpp"

using namespace pinferry;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

std::shared_ptr<Arena> make_arena(const std::shared_ptr<Device>& device, std::size_t bytes) {
    HostMemoryRequest request;
    request.layout = lay_out_chunks(bytes, 0, mib / 4);
    request.at_once = request.layout.initial;
    request.pages.huge_pages = false;
    return Arena::create(device, request);
}

// An event that a test completes, and that may look at the world while it is asked.
class TestEvent final : public Event {
  public:
    bool complete() const noexcept override {
        if (asked) asked();
        return done;
    }
    bool synchronize(Timeout) const override { return done; }

    std::atomic<bool> done{false};
    std::function<void()> asked;
};

// Bytes of "device memory" on the CPU device.
class Memory {
  public:
    Memory(std::shared_ptr<Device> device, std::size_t bytes, unsigned char value)
        : device_(std::move(device)), address_(device_->allocate(bytes)) {
        std::memset(data(), value, bytes);
    }
    ~Memory() { device_->free(address_); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    Address address() const { return address_; }
    unsigned char* data() const { return reinterpret_cast<unsigned char*>(address_); }

  private:
    std::shared_ptr<Device> device_;
    Address address_;
};

bool holds_only(const void* data, std::size_t bytes, unsigned char value) {
    const auto* begin = static_cast<const unsigned char*>(data);
    return std::all_of(begin, begin + bytes, [=](unsigned char byte) { return byte == value; });
}

std::vector<Piece> pieces_of(const Blocks& blocks, Address address) {
    std::vector<Piece> pieces;
    for (const auto& block : blocks) {
        pieces.push_back({block, address, block->bytes()});
        address += block->bytes();
    }
    return pieces;
}

// One thread's life: takes extents, moves its own value out and back, and drops things early.
void play(const std::shared_ptr<Device>& device, const std::shared_ptr<Arena>& arena,
          unsigned char value) {
    constexpr std::size_t most = 100'000;
    std::mt19937 random(value);
    const Memory source(device, most, value), target(device, most, 0);
    const auto stream = device->create_stream();
    std::vector<Ticket> tickets;
    for (int round = 0; round < 150; ++round) {
        const std::size_t bytes = random() % most;
        std::vector<Blocks> dealt;
        try {
            dealt = arena->allocate_extents({bytes}, random() % 2 == 0 ? Timeout() : Timeout(0ns));
        } catch (const Error& error) {
            CHECK(error.kind() == "ArenaExhausted");
            continue;
        }
        const auto out = submit(device, Direction::to_host, pieces_of(dealt[0], source.address()),
                                {stream->handle()});
        tickets.push_back(out);
        if (random() % 3 == 0) continue;  // the blocks die with their copy under way
        if (random() % 2 == 0) {
            CHECK(out.synchronize(std::nullopt));
            for (const auto& block : dealt[0]) {
                CHECK(holds_only(block->data(), block->bytes(), value));
            }
        }
        std::memset(target.data(), 0, bytes);
        const auto back = submit(device, Direction::to_device,
                                 pieces_of(dealt[0], target.address()), {stream->handle()});
        dealt.clear();
        CHECK(back.synchronize(10s));
        CHECK(holds_only(target.data(), bytes, value));
    }
    for (const auto& ticket : tickets) CHECK(ticket.synchronize(10s));
}

}  // namespace

TEST_CASE("threads that allocate, copy and drop at random never see each other's bytes") {
    const auto device = std::make_shared<HostDevice>();
    const auto arena = make_arena(device, mib);
    std::atomic<bool> playing{true};
    std::thread watcher([&] {
        while (playing) {
            const ArenaStats now = arena->stats();
            CHECK(now.used_bytes + now.free_bytes + now.retired_bytes == now.capacity_bytes);
            CHECK(now.peak_bytes <= now.capacity_bytes);
            std::this_thread::yield();
        }
    });
    std::vector<std::thread> players;
    for (unsigned char value = 1; value <= 4; ++value) {
        players.emplace_back(play, device, arena, value);
    }
    for (auto& player : players) player.join();
    playing = false;
    watcher.join();
    const ArenaStats end = arena->stats();
    CHECK(end.free_bytes == mib);
    CHECK(end.retired_bytes == 0);
    CHECK(end.blocks == 0);
    CHECK(end.largest_free_bytes == mib / 4);
}

TEST_CASE("ranges come back in whatever order their copies end") {
    const auto arena = make_arena(std::make_shared<HostDevice>(), 1024);
    const auto first = std::make_shared<TestEvent>(), second = std::make_shared<TestEvent>();
    arena->allocate(512, 0ns)->add_use(first);
    auto block = arena->allocate(512, 0ns);
    block->add_use(second);
    block->add_use(first);
    block->add_use(second);
    block.reset();
    CHECK(arena->stats().retired_bytes == 1024);
    CHECK(!arena->try_allocate(1));
    second->done = true;
    CHECK(!arena->try_allocate(1));
    first->done = true;
    CHECK(arena->stats().free_bytes == 1024);
}

TEST_CASE("a use that is complete does not retire the range") {
    const auto arena = make_arena(std::make_shared<HostDevice>(), 1024);
    const auto first = std::make_shared<TestEvent>(), second = std::make_shared<TestEvent>();
    auto block = arena->allocate(512, 0ns);
    block->add_use(first);
    first->done = true;
    block->add_use(second);
    CHECK(block->pending_uses() == Events{second});
    second->done = true;
    block.reset();
    CHECK(arena->stats().retired_bytes == 0);
}

TEST_CASE("an event is never asked under the arena's lock") {
    const auto arena = make_arena(std::make_shared<HostDevice>(), 1024);
    const auto event = std::make_shared<TestEvent>();
    std::atomic<int> answered{0}, stuck{0};
    std::vector<std::future<void>> asking;
    event->asked = [&] {
        asking.push_back(std::async(std::launch::async, [&] {
            static_cast<void>(arena->closed());
            static_cast<void>(arena->next_chunk_bytes());
        }));
        ++(asking.back().wait_for(5s) == std::future_status::ready ? answered : stuck);
    };
    arena->allocate(512, 0ns)->add_use(event);
    CHECK(arena->stats().retired_bytes == 512);
    CHECK(answered == 1);
    CHECK(stuck == 0);
    event->asked = nullptr;
    event->done = true;
}

TEST_CASE("a thread that waits for room gets it when the copy in flight ends") {
    const auto device = std::make_shared<HostDevice>();
    const auto arena = make_arena(device, 512);
    const Memory memory(device, 512, 7);
    const auto producer = device->create_stream();
    producer->hold();
    submit(device, Direction::to_host, {{arena->allocate(512, 0ns), memory.address(), 512}},
           {producer->handle()});
    auto waiting = std::async(std::launch::async, [&] { return arena->allocate(512, Timeout()); });
    CHECK(waiting.wait_for(50ms) == std::future_status::timeout);
    CHECK_THROWS(Error, arena->allocate(512, 1ms));
    producer->release();
    CHECK(waiting.wait_for(10s) == std::future_status::ready);
    CHECK(holds_only(waiting.get()->data(), 512, 7));
}

TEST_CASE("an aligned block does not wait for a range that will not hold it") {
    const auto arena = make_arena(std::make_shared<HostDevice>(), 8192);
    const auto copy = std::make_shared<TestEvent>();
    const auto before = arena->allocate(512, 0ns);
    auto block = arena->allocate(4096, 0ns);
    const auto after = arena->allocate(8192 - 512 - 4096, 0ns);
    block->add_use(copy);
    block.reset();
    const auto start = std::chrono::steady_clock::now();
    CHECK_THROWS(Error, arena->allocate(4096, 60s, 4096));
    CHECK(std::chrono::steady_clock::now() - start < 30s);
    copy->done = true;
    CHECK(arena->allocate(4096, 0ns)->offset() == 512);
}

TEST_CASE("closing an arena ends the wait for room") {
    const auto device = std::make_shared<HostDevice>();
    const auto arena = make_arena(device, 512);
    const auto event = std::make_shared<TestEvent>();
    arena->allocate(512, 0ns)->add_use(event);
    auto waiting = std::async(std::launch::async, [&] {
        try {
            arena->allocate(512, Timeout());
        } catch (const Error& error) {
            return error.kind();
        }
        return std::string("no error");
    });
    CHECK(waiting.wait_for(10ms) == std::future_status::timeout);
    arena->close();
    CHECK(waiting.get() == "ArenaClosed");
    event->done = true;
}

TEST_CASE("an arena may die while copies into its memory are in flight") {
    for (const Direction direction : {Direction::to_host, Direction::to_device}) {
        const auto device = std::make_shared<HostDevice>();
        auto arena = make_arena(device, 4 * mib);
        const Memory memory(device, 4 * mib, 7);
        const auto gate = device->create_stream();
        gate->hold();
        auto ticket =
            submit(device, direction,
                   pieces_of(arena->allocate_extents({4 * mib}, 0ns)[0], memory.address()),
                   {gate->handle()});
        std::thread opener([&] { gate->release(); });
        arena.reset();
        opener.join();
        CHECK(ticket.synchronize(10s));
    }
}

TEST_CASE("a ticket outlives its device, arena and block") {
    Ticket ticket;
    {
        const auto device = std::make_shared<HostDevice>();
        const Memory memory(device, 512, 7);
        const auto arena = make_arena(device, 512);
        ticket = submit(device, Direction::to_host,
                        {{arena->allocate(512, 0ns), memory.address(), 512}}, {});
    }
    CHECK(ticket.synchronize(10s));
    CHECK(ticket.elapsed_ms().has_value());
}

TEST_CASE("memory that died under a copy is kept until that copy has ended") {
    for (const Direction direction : {Direction::to_host, Direction::to_device}) {
        const auto device = std::make_shared<HostDevice>();
        auto arena = make_arena(device, mib);
        auto memory = std::make_unique<Memory>(device, mib, 7);
        const auto gate = device->create_stream();
        gate->hold();
        const auto ticket = submit(
            device, direction, pieces_of(arena->allocate_extents({mib}, 0ns)[0], memory->address()),
            {gate->handle()});
        arena.reset();
        memory.reset();
        CHECK(!ticket.done());
        gate->release();
        CHECK(ticket.synchronize(10s));
    }
}

TEST_CASE("a block keeps its arena's memory") {
    const auto device = std::make_shared<HostDevice>();
    const auto block = make_arena(device, 4096)->allocate(4096, 0ns);
    std::memset(block->data(), 3, 4096);
    CHECK(holds_only(block->data(), 4096, 3));
}
