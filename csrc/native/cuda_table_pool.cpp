#include "cuda_table_pool.hpp"

#include <algorithm>

#include "blocking.hpp"

namespace pinferry::cuda {
namespace {

// 128 MiB in units of 8 KiB: 384 KiB of pinned memory.
constexpr std::size_t smallest_room = 16384;

bool wait_until(const Event& event, std::chrono::steady_clock::time_point deadline) noexcept {
    const auto left = deadline - std::chrono::steady_clock::now();
    try {
        return event.synchronize(std::max(left, std::chrono::steady_clock::duration::zero()));
    } catch (const std::exception&) {
        return false;  // the device reports an error: nobody knows what still runs
    }
}

}  // namespace

TablePool::~TablePool() {
    const BlockingSection blocking;
    const PrimaryContext::Scope scope(*context_, std::nothrow);
    if (!scope.ok()) return;
    const auto deadline = std::chrono::steady_clock::now() + farewell;
    // All or none: freeing an idle table would wait for the kernel that reads another one.
    const bool idle = std::all_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
        return !entry.last_read || wait_until(*entry.last_read, deadline);
    });
    if (!idle) return;
    for (const Entry& entry : entries_) context_->driver().host_free(entry.table.units);
}

void TablePool::prepare(std::size_t tables) {
    std::vector<Table> made;
    try {
        while (made.size() < tables) made.push_back(make(smallest_room));
    } catch (...) {
        for (const Table table : made) give_back(table, nullptr);
        throw;
    }
    for (const Table table : made) give_back(table, nullptr);
}

Table TablePool::make(std::size_t units) {
    Table table;
    table.room = smallest_room;
    while (table.room < units) table.room *= 2;
    void* memory = nullptr;
    check(
        context_->driver(), "cuMemHostAlloc",
        context_->driver().host_alloc(&memory, table.room * sizeof(CopyUnit), host_alloc_portable));
    table.units = static_cast<CopyUnit*>(memory);
    return table;
}

Table TablePool::take(std::size_t units) {
    {
        const std::lock_guard lock(mutex_);
        // Asking an event never blocks. The oldest come first, and they end first.
        const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
            return entry.table.room >= units && (!entry.last_read || entry.last_read->complete());
        });
        if (found != entries_.end()) {
            const Table table = found->table;
            entries_.erase(found);
            return table;
        }
    }
    return make(units);
}

void TablePool::give_back(Table table, std::shared_ptr<Event> last_read) noexcept {
    try {
        const std::lock_guard lock(mutex_);
        entries_.push_back({table, std::move(last_read)});
    } catch (const std::exception&) {
        // No memory to remember it by: the table is lost, which the driver bears.
    }
}

}  // namespace pinferry::cuda
