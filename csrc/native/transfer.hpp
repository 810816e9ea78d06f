#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "arena.hpp"
#include "copy_ranges.hpp"
#include "device.hpp"
#include "mark.hpp"

namespace pinferry {

// A whole block, and where its bytes lie on the device. `bytes` is at most the size of the block.
struct Piece {
    std::shared_ptr<Block> block;
    Address device = 0;
    std::size_t bytes = 0;
};

// What is copied by one call: ranges, and the blocks that they lie in, each once.
struct Batch {
    CopyRanges ranges;
    Blocks blocks;
};

// What was submitted: one batch of copies in one lane. Copyable state is shared, so dropping a
// ticket never harms the copies. An empty batch gives a ticket that is done.
class Ticket {
  public:
    Ticket() = default;
    Ticket(std::shared_ptr<Device> device, std::shared_ptr<Event> start, std::shared_ptr<Event> end,
           std::size_t bytes)
        : device_(std::move(device)),
          start_(std::move(start)),
          end_(std::move(end)),
          bytes_(bytes) {}

    // Of no copies: done at the moment of `mark`.
    explicit Ticket(const Mark& mark) : Ticket(mark.device(), mark.event(), mark.event(), 0) {}

    bool done() const noexcept { return !end_ || end_->complete(); }
    // Makes what is queued on `stream` from now on wait for the copies.
    void wait(StreamHandle stream) const;
    // Blocks the host. False when `timeout` passed first.
    bool synchronize(Timeout timeout) const;
    // Milliseconds from the first copy's start to the last one's end; nothing before that.
    std::optional<double> elapsed_ms() const;
    // Milliseconds from `base` to the first copy's start and to the last one's end; nothing before
    // that, and nothing for an empty batch. CUDA counts in 24 bits: an hour after `base` the start
    // is known to a quarter of a millisecond; the time between the two stays exact.
    // Throws Error("WrongDevice") for a mark of another device.
    std::optional<std::pair<double, double>> span_ms(const Mark& base) const;
    std::size_t bytes() const noexcept { return bytes_; }

  private:
    std::shared_ptr<Device> device_;
    std::shared_ptr<Event> start_;
    std::shared_ptr<Event> end_;
    std::size_t bytes_ = 0;
};

// Queues copies on the copy stream of `lane`, behind
//  - all work queued so far on `streams`: the producers of what is read (D2H), or the users of the
//    device memory that is overwritten and on whose stream it was allocated (H2D);
//  - the batches of `after`;
//  - earlier copies that touched the same host blocks, whatever their direction.
// Never blocks the host, except when it fails: then it waits until no queued copy runs any more and
// throws Error; nothing but the contents of the target is changed.
Ticket submit_batch(const std::shared_ptr<Device>& device, Lane lane, const Batch& batch,
                    const std::vector<StreamHandle>& streams,
                    const std::vector<Ticket>& after = {});

// The same for whole blocks, each with one place on the device.
Ticket submit(const std::shared_ptr<Device>& device, Lane lane, const std::vector<Piece>& pieces,
              const std::vector<StreamHandle>& streams, const std::vector<Ticket>& after = {});

}  // namespace pinferry
