// perf/d2d/pipe.h: a wire between two ranks of one thread that costs next to nothing, for measuring
// what lies above it.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "d2d/wire/wire.h"
#include "d2d/wires/completions.h"
#include "d2d/wires/fifo.h"

namespace smp::perf::d2d_program {

/// What both ends share.
struct PipeEnds {
  struct Posted {
    d2d::TransferId id = 0;
    std::span<std::byte> bytes{};
    d2d::Token token = 0;
  };
  struct End {
    d2d::Fifo<d2d::ByteBuffer> control{};
    std::vector<Posted> receives{};
    d2d::Completions completions{};
  };
  std::array<End, 2> ends{};
  d2d::BufferPool buffers{};
};

/// Every receive is named before its send.
class Pipe final : public d2d::Wire {
 public:
  Pipe(std::shared_ptr<PipeEnds> ends, GlobalRank rank)
      : Wire(rank, d2d::Members::all(2)), ends_(std::move(ends)) {}

  const char* name() const noexcept override { return "pipe"; }
  d2d::BufferPool& buffers() noexcept override { return ends_->buffers; }
  void post(GlobalRank peer, d2d::ByteBuffer&& bytes) override {
    end(peer).control.push(std::move(bytes));
  }
  void send(std::span<const std::byte> bytes, GlobalRank peer, d2d::TransferId id,
            d2d::Token token) override {
    auto& other = end(peer);
    for (auto& posted : other.receives) {
      if (posted.id != id) continue;
      std::memcpy(posted.bytes.data(), bytes.data(), bytes.size());
      other.completions.note_received(posted.token);
      posted = other.receives.back();
      other.receives.pop_back();
      own().completions.begin_send();
      own().completions.note_sent(token);
      return;
    }
    SMP_ASSERT(false, "nobody receives ", id);
  }
  void receive(std::span<std::byte> bytes, GlobalRank, d2d::TransferId id,
               d2d::Token token) override {
    own().receives.push_back({id, bytes, token});
  }
  bool complete() override { return own().completions.tell(handler()); }
  bool poll() override {
    bool moved = complete();
    while (!own().control.empty()) {
      handler().on_control(GlobalRank(1 - rank().value()), own().control.pop());
      moved = true;
    }
    return moved;
  }
  bool drained() const noexcept override { return true; }
  bool leave() override { return true; }

 private:
  PipeEnds::End& end(GlobalRank of) { return ends_->ends[of.index()]; }
  PipeEnds::End& own() { return end(rank()); }

  std::shared_ptr<PipeEnds> ends_;
};

}  // namespace smp::perf::d2d_program
