// d2d/wire/wire_probe.cpp: see the header.
#include "d2d/wire/wire_probe.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <exception>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/keep_until_exit.h"

namespace smp::d2d {
namespace {

constexpr std::size_t kControlBytes = 200;
constexpr std::size_t kDataBytes = 100'000;
/// The number of the transfer in a probe; no sender gets so far with his own numbers.
constexpr TransferId kTransfer = (TransferId{1} << 48) - 1;

std::vector<std::byte> pattern(std::size_t size, GlobalRank from, GlobalRank to) {
  std::vector<std::byte> bytes(size);
  auto state = static_cast<unsigned>(from.value() * 7919 + to.value() * 104'729 + 1);
  for (auto& byte : bytes) {
    state = state * 1'664'525U + 1'013'904'223U;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

class HostMemory final : public ProbeMemory {
 public:
  std::span<std::byte> allocate(std::size_t bytes) override { return blocks_.emplace_back(bytes); }
  void write(std::span<std::byte> to, const std::vector<std::byte>& bytes) override {
    std::copy(bytes.begin(), bytes.end(), to.begin());
  }
  std::vector<std::byte> read(std::span<const std::byte> from) override {
    return {from.begin(), from.end()};
  }

 private:
  std::list<std::vector<std::byte>> blocks_;
};

class Probe final : private WireHandler {
 public:
  Probe(Wire& wire, std::unique_ptr<ProbeMemory> memory)
      : wire_(wire), memory_(std::move(memory)), peers_(wire.members().size()) {
    wire_.set_handler(this);
  }

  std::string run(base::Nanoseconds patience) {
    const base::SteadyClock clock;
    const auto end = clock.now() + patience;
    for (const auto peer : wire_.members()) {
      if (wire_.reaches(peer)) start(peer);
    }
    for (int idle = 0; !complete(); ++idle) {
      if (wire_.poll()) idle = 0;
      if (clock.now() > end) return "nothing came from rank " + missing();
      wait_politely(idle);
    }
    for (const auto peer : wire_.members()) {
      if (wire_.reaches(peer) &&
          memory_->read(at(peer).place) != pattern(kDataBytes, peer, wire_.rank())) {
        return base::concat("wrong bytes came from rank ", peer);
      }
    }
    return wrong_control_;
  }

 private:
  struct Peer {
    std::span<std::byte> sent, place;
    bool control = false, data = false;
  };
  Peer& at(GlobalRank rank) {
    return peers_[static_cast<std::size_t>(wire_.members().position(rank))];
  }

  void start(GlobalRank peer) {
    auto& own = at(peer);
    own.sent = memory_->allocate(kDataBytes);
    memory_->write(own.sent, pattern(kDataBytes, wire_.rank(), peer));
    own.place = memory_->allocate(kDataBytes);
    wire_.receive(own.place, peer, kTransfer, static_cast<Token>(peer.value()));
    const auto control = pattern(kControlBytes, wire_.rank(), peer);
    auto buffer = wire_.buffers().take();
    buffer.resize(kControlBytes);
    std::memcpy(buffer.data(), control.data(), kControlBytes);
    wire_.post(peer, std::move(buffer));
    wire_.send(own.sent, peer, kTransfer, 0);
  }
  bool complete() { return wire_.drained() && missing().empty(); }
  /// Returns a rank from which something is still to come.
  std::string missing() {
    for (const auto peer : wire_.members()) {
      if (wire_.reaches(peer) && !(at(peer).control && at(peer).data)) {
        return std::to_string(peer.value());
      }
    }
    return {};
  }

  void on_control(GlobalRank source, ByteBuffer&& bytes) override {
    const auto expected = pattern(kControlBytes, source, wire_.rank());
    const auto came = bytes.span();
    at(source).control = true;
    if (!std::equal(came.begin(), came.end(), expected.begin(), expected.end())) {
      wrong_control_ = base::concat("wrong control bytes came from rank ", source);
    }
    wire_.buffers().give(std::move(bytes));
  }
  void on_sent(Token) override {}
  void on_received(Token token) override { at(GlobalRank(static_cast<int>(token))).data = true; }

  Wire& wire_;
  std::unique_ptr<ProbeMemory> memory_;
  std::vector<Peer> peers_;
  std::string wrong_control_;
};

}  // namespace

std::string probe(Wire& wire, base::Nanoseconds patience) {
  return probe(wire, patience, std::make_unique<HostMemory>());
}

std::string probe(Wire& wire, base::Nanoseconds patience, std::unique_ptr<ProbeMemory> memory) {
  auto probe = std::make_unique<Probe>(wire, std::move(memory));
  std::string wrong;
  try {
    wrong = probe->run(patience);
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  wire.set_handler(nullptr);
  // What did not come in time may come later, into memory that must be there still.
  if (!wrong.empty()) base::keep_until_exit(std::move(probe));
  return wrong;
}

}  // namespace smp::d2d
