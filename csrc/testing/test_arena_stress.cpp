// Threads that do everything to one arena at once; meant for the sanitizers. The seed of a run is
// printed when a check fails, and PINFERRY_STRESS_SEED plays its choices again.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../native/arena.hpp"
#include "../native/error.hpp"
#include "../native/host_device.hpp"
#include "check.hpp"

using namespace pinferry;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t chunk = 64 << 10;
constexpr std::size_t rounds = 1500;

std::uint64_t seed() {
    const char* given = std::getenv("PINFERRY_STRESS_SEED");
    return given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

std::shared_ptr<Arena> make_arena() {
    HostMemoryRequest request;
    request.layout = lay_out_chunks(4 * chunk, 16 * chunk, chunk);
    request.at_once = request.layout.initial;
    request.pages.huge_pages = false;
    return Arena::create(std::make_shared<HostDevice>(), request);
}

class ManualEvent final : public Event {
  public:
    bool complete() const noexcept override { return done.load(std::memory_order_acquire); }
    bool synchronize(Timeout) const override { return complete(); }
    std::atomic<bool> done{false};
};

// Blocks that one thread holds, each filled with a byte that tells it from its neighbours.
class Player {
  public:
    Player(std::shared_ptr<Arena> arena, std::uint64_t seed)
        : arena_(std::move(arena)), random_(seed) {}

    bool play() {
        for (std::size_t round = 0; round < rounds && intact_; ++round) move();
        while (!held_.empty()) drop(0);
        finish_copies();
        return intact_;
    }

  private:
    struct Held {
        std::shared_ptr<Block> block;
        unsigned char value;
    };

    void move() {
        const std::size_t choice = random_() % 10;
        if (choice < 3) {
            hold(arena_->try_allocate(random_() % (chunk / 4)));
        } else if (choice < 5) {
            if (const auto dealt = arena_->try_allocate_extents({random_() % chunk, 512})) {
                for (const Blocks& extents : *dealt) {
                    for (const auto& block : extents) hold(block);
                }
            }
        } else if (choice < 6) {
            try {
                hold(arena_->allocate(random_() % chunk, 50us));
            } catch (const Error& error) {
                intact_ = intact_ && error.kind() == "ArenaExhausted";
            }
        } else if (choice < 9) {
            if (!held_.empty()) drop(random_() % held_.size());
        } else {
            finish_copies();
        }
        if (held_.size() > 40) drop(random_() % held_.size());
    }

    void hold(std::shared_ptr<Block> block) {
        if (!block) return;
        const auto value = static_cast<unsigned char>(random_());
        if (block->bytes() > 0) std::memset(block->data(), value, block->bytes());
        held_.push_back({std::move(block), value});
    }

    void drop(std::size_t index) {
        std::swap(held_[index], held_.back());
        const Held held = std::move(held_.back());
        held_.pop_back();
        const auto* begin = reinterpret_cast<const unsigned char*>(held.block->data());
        intact_ = intact_ && std::all_of(begin, begin + held.block->bytes(),
                                         [&](unsigned char c) { return c == held.value; });
        if (random_() % 3 != 0) return;
        copies_.push_back(std::make_shared<ManualEvent>());
        held.block->add_use(copies_.back());
    }

    // Out of order, as copies of several streams end.
    void finish_copies() {
        std::shuffle(copies_.begin(), copies_.end(), random_);
        for (const auto& copy : copies_) copy->done.store(true, std::memory_order_release);
        copies_.clear();
    }

    std::shared_ptr<Arena> arena_;
    std::mt19937_64 random_;
    std::vector<Held> held_;
    std::vector<std::shared_ptr<ManualEvent>> copies_;
    bool intact_ = true;
};

bool layout_is_whole(Arena& arena) {
    std::size_t end = 0;
    for (const Region& region : arena.layout()) {
        if (region.range.offset < end || region.range.size == 0) return false;
        end = region.range.end();
    }
    const ArenaStats now = arena.stats();
    return end == 16 * chunk &&
           now.used_bytes + now.free_bytes + now.retired_bytes == now.capacity_bytes;
}

}  // namespace

TEST_CASE("threads that allocate, free, grow, trim and look keep apart") {
    const std::uint64_t first_seed = seed();
    const auto arena = make_arena();
    std::atomic<int> intact{0};
    std::atomic<bool> over{false}, whole{true};
    std::vector<std::thread> players;
    for (std::uint64_t i = 0; i < 4; ++i) {
        players.emplace_back([&, i] { intact += Player(arena, first_seed + i).play() ? 1 : 0; });
    }
    std::thread keeper([&] {
        for (std::size_t i = 0; !over; ++i) {
            if (i % 3 == 2) {
                arena->trim(4 * chunk);
            } else {
                arena->make_chunk();
            }
            whole = whole && layout_is_whole(*arena);
            std::this_thread::sleep_for(100us);
        }
    });
    for (auto& player : players) player.join();
    over = true;
    keeper.join();
    if (intact != 4) std::printf("PINFERRY_STRESS_SEED=%llu\n", (unsigned long long)first_seed);
    CHECK(intact == 4);
    CHECK(whole);
    const ArenaStats end = arena->stats();
    CHECK(end.blocks == 0);
    CHECK(end.free_bytes == end.capacity_bytes);
    CHECK(arena->trim(0) == end.capacity_bytes);
    CHECK(arena->stats().locked_bytes == 0);
}

TEST_CASE("an arena may be closed amid allocations, growth and frees") {
    for (int round = 0; round < 20; ++round) {
        auto arena = make_arena();
        std::atomic<int> refused{0};
        std::vector<std::thread> players;
        for (int i = 0; i < 3; ++i) {
            players.emplace_back([&, i] {
                Blocks held;
                try {
                    while (true) {
                        if (i == 0) arena->make_chunk();
                        if (auto block = arena->try_allocate(4096)) held.push_back(block);
                        if (held.size() > 8) held.erase(held.begin());
                    }
                } catch (const Error& error) {
                    refused += error.kind() == "ArenaClosed" ? 1 : 0;
                }
                for (const auto& block : held) std::memset(block->data(), 1, block->bytes());
            });
        }
        std::this_thread::sleep_for(200us);
        arena->close();
        for (auto& player : players) player.join();
        CHECK(refused == 3);
        CHECK(arena->stats().capacity_bytes == 0);
    }
}
