#include "transfer.hpp"

#include <algorithm>
#include <unordered_set>

#include "error.hpp"

namespace pinferry {
namespace {

// Each distinct event once: a batch shares one among all its blocks.
Events distinct_uses(const Blocks& blocks) {
    Events uses;
    std::unordered_set<const Event*> seen;
    for (const auto& block : blocks) {
        for (auto& use : block->pending_uses()) {
            if (seen.insert(use.get()).second) uses.push_back(std::move(use));
        }
    }
    return uses;
}

bool pinned(const Batch& batch) {
    return std::all_of(batch.blocks.begin(), batch.blocks.end(),
                       [](const auto& block) { return block->arena()->memory().pinned(); });
}

Ticket queue_copies(const std::shared_ptr<Device>& device, Lane lane, const Batch& batch,
                    const std::vector<StreamHandle>& streams, const std::vector<Ticket>& after) {
    const StreamHandle copy_stream = device->copy_stream(lane);
    for (const StreamHandle stream : streams)
        device->wait(copy_stream, *device->record(stream, false));
    for (const Ticket& earlier : after) earlier.wait(copy_stream);
    for (const auto& use : distinct_uses(batch.blocks)) device->wait(copy_stream, *use);
    auto start = device->record(copy_stream, true);
    device->copy(lane, batch.ranges.list(), pinned(batch));
    auto end = device->record(copy_stream, true);
    for (const auto& block : batch.blocks) block->add_use(end);
    device->note_copies(lane, end);
    return Ticket(device, std::move(start), std::move(end), batch.ranges.bytes());
}

Batch batch_of(const std::vector<Piece>& pieces) {
    Batch batch{CopyRanges(pieces.size()), {}};
    batch.blocks.reserve(pieces.size());
    for (const Piece& piece : pieces) {
        const Block& block = *piece.block;
        batch.ranges.add({block.data(), piece.device, piece.bytes}, block.chunk(),
                         batch.blocks.size());
        batch.blocks.push_back(piece.block);
    }
    return batch;
}

}  // namespace

void Ticket::wait(StreamHandle stream) const {
    if (end_) device_->wait(stream, *end_);  // refuses by itself after a fork
}

bool Ticket::synchronize(Timeout timeout) const {
    if (!end_) return true;
    device_->process().require_same_process("this ticket");
    return end_->synchronize(timeout);
}

std::optional<double> Ticket::elapsed_ms() const {
    if (!end_) return 0.0;
    if (!end_->complete()) return std::nullopt;
    return device_->elapsed_ms(*start_, *end_);
}

std::optional<std::pair<double, double>> Ticket::span_ms(const Mark& base) const {
    if (!end_) return std::nullopt;
    if (base.device() != device_) {
        throw Error("WrongDevice",
                    "a mark of another device says nothing about this ticket; make one on the "
                    "device that copied");
    }
    if (!base.event()->complete() || !end_->complete()) return std::nullopt;
    const double start = device_->elapsed_ms(*base.event(), *start_);
    // The length by itself: a difference of two large times would lose most of its digits.
    return std::pair(start, start + device_->elapsed_ms(*start_, *end_));
}

Ticket submit(const std::shared_ptr<Device>& device, Lane lane, const std::vector<Piece>& pieces,
              const std::vector<StreamHandle>& streams, const std::vector<Ticket>& after) {
    return submit_batch(device, lane, batch_of(pieces), streams, after);
}

Ticket submit_batch(const std::shared_ptr<Device>& device, Lane lane, const Batch& batch,
                    const std::vector<StreamHandle>& streams, const std::vector<Ticket>& after) {
    device->process().require_same_process("this transfer engine");
    if (batch.blocks.empty()) return Ticket();
    for (const auto& block : batch.blocks) {
        if (block->arena()->device() == device) continue;
        throw Error("WrongDevice",
                    "a block belongs to an arena of another device; make one for this device");
    }
    try {
        return queue_copies(device, lane, batch, streams, after);
    } catch (...) {
        device->drain();
        throw;
    }
}

}  // namespace pinferry
