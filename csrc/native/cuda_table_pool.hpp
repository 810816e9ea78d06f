#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "copy_table.hpp"
#include "cuda_context.hpp"
#include "event.hpp"

namespace pinferry::cuda {

// A table of units in pinned memory, which a kernel reads while it runs.
struct Table {
    CopyUnit* units = nullptr;
    std::size_t room = 0;  // in units
};

// Tables of one context for reuse. One is dealt out again only when the kernel that read it has
// ended, and none is freed before the pool is: freeing pinned memory waits for the whole device.
class TablePool {
  public:
    explicit TablePool(std::shared_ptr<PrimaryContext> context) : context_(std::move(context)) {}
    // Waits a moment for kernels that still read a table; where one is stuck, the tables stay.
    ~TablePool();
    TablePool(const TablePool&) = delete;
    TablePool& operator=(const TablePool&) = delete;

    // Makes tables ahead, while nothing waits for the device.
    void prepare(std::size_t tables);

    // A table with room for `units`. With the context current.
    // Throws Error("DriverCallFailed") or Error("DeviceOutOfMemory") if one must be made and
    // cannot be.
    Table take(std::size_t units);
    // `last_read` is behind the kernel that reads the table; null if none does.
    void give_back(Table table, std::shared_ptr<Event> last_read) noexcept;

  private:
    struct Entry {
        Table table;
        std::shared_ptr<Event> last_read;
    };

    Table make(std::size_t units);

    std::shared_ptr<PrimaryContext> context_;
    std::mutex mutex_;
    std::vector<Entry> entries_;  // guarded by mutex_
};

}  // namespace pinferry::cuda
