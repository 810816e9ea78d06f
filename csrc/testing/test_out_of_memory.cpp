#include <cstdlib>
#include <new>
#include <vector>

#include "../native/arena.hpp"
#include "../native/host_device.hpp"
#include "check.hpp"

using namespace pinferry;
using namespace std::chrono_literals;

namespace {

thread_local long allocations_left = -1;  // the one after them fails, once; negative: none does

class FailingAllocation {
  public:
    explicit FailingAllocation(long after) { allocations_left = after; }
    ~FailingAllocation() { allocations_left = -1; }
    FailingAllocation(const FailingAllocation&) = delete;
    FailingAllocation& operator=(const FailingAllocation&) = delete;

    bool came() const { return allocations_left < 0; }
};

}  // namespace

void* operator new(std::size_t bytes) {
    if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
    if (void* memory = std::malloc(bytes)) return memory;
    throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

constexpr std::size_t unit = 512;
constexpr std::size_t units = 2048;

struct Copy final : Event {
    bool complete() const noexcept override { return done; }
    bool synchronize(Timeout) const override { return done; }

    bool done = false;
};

std::shared_ptr<Arena> make_arena() {
    HostMemoryRequest request;
    request.layout = lay_out_chunks(units * unit, 0, units * unit);
    request.at_once = request.layout.initial;
    request.pages.huge_pages = false;
    return Arena::create(std::make_shared<HostDevice>(), request);
}

Blocks take_all(const std::shared_ptr<Arena>& arena) {
    Blocks blocks;
    for (std::size_t i = 0; i < units; ++i) blocks.push_back(arena->allocate(unit, 0ns));
    return blocks;
}

void free_every_second(Blocks& blocks) {
    for (std::size_t i = 0; i < blocks.size(); i += 2) blocks[i].reset();
}

}  // namespace

TEST_CASE("extents lose nothing, whichever allocation of the call fails") {
    const auto arena = make_arena();
    Blocks blocks = take_all(arena);
    free_every_second(blocks);
    const std::size_t holes = units / 2;
    // The first is one range, the second several, the last all that is left.
    const std::vector<std::size_t> sizes{unit, 100 * unit, (holes - 101) * unit};
    bool failed = true;
    for (long after = 0; failed; ++after) {
        std::optional<std::vector<Blocks>> dealt;
        failed = false;
        {
            const FailingAllocation failing(after);
            try {
                dealt = arena->try_allocate_extents(sizes);
            } catch (const std::bad_alloc&) {
                failed = true;
            }
        }
        CHECK(failed != dealt.has_value());
        dealt.reset();
        const ArenaStats now = arena->stats();
        CHECK(now.free_bytes == holes * unit);
        CHECK(now.blocks == units - holes);
    }
}

TEST_CASE("ranges whose copies have ended come back, whichever allocation fails meanwhile") {
    bool failed = true;
    for (long after = 0; failed; ++after) {
        const auto arena = make_arena();
        const auto copy = std::make_shared<Copy>();
        Blocks blocks = take_all(arena);
        for (const auto& block : blocks) block->add_use(copy);
        free_every_second(blocks);
        CHECK(arena->stats().retired_bytes == units / 2 * unit);
        copy->done = true;
        {
            const FailingAllocation failing(after);
            arena->stats();
            failed = failing.came();
        }
        const ArenaStats now = arena->stats();
        CHECK(now.free_bytes == units / 2 * unit);
        CHECK(now.retired_bytes == 0);
    }
}

TEST_CASE("a block that dies while memory is short gives its range back later") {
    bool failed = true;
    for (long after = 0; failed; ++after) {
        const auto arena = make_arena();
        Blocks blocks = take_all(arena);
        {
            const FailingAllocation failing(after);
            free_every_second(blocks);
            failed = failing.came();
        }
        CHECK(arena->stats().free_bytes == units / 2 * unit);
    }
}
