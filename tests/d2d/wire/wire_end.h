// A rank's end of a wire, and what it was told: for tests.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "d2d/wire/wire.h"

namespace smp::d2d {

using Bytes = std::vector<std::byte>;

inline Bytes random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; i += sizeof(std::uint64_t)) {
    const std::uint64_t bits = random();
    std::memcpy(bytes.data() + i, &bits, std::min(sizeof bits, size - i));
  }
  return bytes;
}

/// A rank's end of a wire, and what it was told.
class WireEnd final : private WireHandler {
 public:
  explicit WireEnd(std::unique_ptr<Wire> wire) : wire_(std::move(wire)) {
    wire_->set_handler(this);
  }
  Wire& wire() { return *wire_; }
  int rank() const { return wire_->rank().value(); }

  void post(GlobalRank peer, const Bytes& bytes) {
    ByteBuffer buffer = wire_->buffers().take();
    buffer.resize(bytes.size());
    std::copy(bytes.begin(), bytes.end(), buffer.data());
    wire_->post(peer, std::move(buffer));
  }

  std::map<int, std::vector<Bytes>> control;  // by source
  std::vector<Token> sent;
  std::vector<Token> received;
  std::function<void(GlobalRank source, const Bytes&)> answer;

 private:
  void on_control(GlobalRank source, ByteBuffer&& bytes) override {
    control[source.value()].emplace_back(bytes.span().begin(), bytes.span().end());
    wire_->buffers().give(std::move(bytes));
    if (answer) answer(source, control[source.value()].back());
  }
  void on_sent(Token token) override { sent.push_back(token); }
  void on_received(Token token) override { received.push_back(token); }

  std::unique_ptr<Wire> wire_;
};

}  // namespace smp::d2d
