// A wire that loses, delays or changes bytes is found out.
#include "d2d/wire/wire_probe.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "d2d/wires/local/local_hub.h"
#include "d2d/wires/local/local_wire.h"

namespace smp::d2d {
namespace {

/// Rank 0 of two. What the other sends is what a probe sends, over a wire of its own.
class WithPeer final : public Wire, private WireHandler {
 public:
  enum class Fault { kNone, kSilent, kWrongControl, kWrongData };
  explicit WithPeer(Fault fault) : Wire(GlobalRank(0), Members::all(2)), fault_(fault) {}

  const char* name() const noexcept override { return "test"; }
  BufferPool& buffers() noexcept override { return buffers_; }
  void post(GlobalRank, ByteBuffer&&) override { posted_ = true; }
  void send(std::span<const std::byte>, GlobalRank, TransferId, Token token) override {
    sent_ = token;
    has_sent_ = true;
  }
  void receive(std::span<std::byte> bytes, GlobalRank, TransferId, Token token) override {
    place_ = bytes;
    received_ = token;
  }
  bool complete() override { return false; }
  bool poll() override {
    if (!posted_ || fault_ == Fault::kSilent) return false;
    posted_ = false;
    const auto hub = std::make_shared<LocalHub>(2);
    LocalWire end(hub, GlobalRank(0)), peer(hub, GlobalRank(1));
    end.set_handler(this);
    end.receive(place_, GlobalRank(1), (TransferId{1} << 48) - 1, 0);
    static_cast<void>(probe(peer, 0));
    end.poll();
    if (fault_ == Fault::kWrongData) place_[777] ^= std::byte{1};
    handler().on_received(received_);
    if (has_sent_) handler().on_sent(sent_);
    return true;
  }
  bool drained() const noexcept override { return !posted_; }
  /// What was asked for comes after all.
  void come_late() { std::fill(place_.begin(), place_.end(), std::byte{7}); }
  bool leave() override { return true; }

 private:
  void on_control(GlobalRank, ByteBuffer&& bytes) override {
    if (fault_ == Fault::kWrongControl) bytes.data()[3] ^= std::byte{1};
    handler().on_control(GlobalRank(1), std::move(bytes));
  }
  void on_sent(Token) override {}
  void on_received(Token) override {}

  Fault fault_;
  BufferPool buffers_;
  bool posted_ = false, has_sent_ = false;
  Token sent_ = 0, received_ = 0;
  std::span<std::byte> place_;
};

std::string probe_with(WithPeer::Fault fault) {
  WithPeer wire(fault);
  return probe(wire, base::kSecond / 5);
}

TEST(WireProbe, FindsNothingWrongWithAWireThatWorks) {
  EXPECT_EQ(probe_with(WithPeer::Fault::kNone), "");
}

TEST(WireProbe, NamesTheRankFromWhichNothingComes) {
  EXPECT_EQ(probe_with(WithPeer::Fault::kSilent), "nothing came from rank 1");
}

TEST(WireProbe, KeepsThePlaceOfWhatMayComeLater) {
  WithPeer wire(WithPeer::Fault::kSilent);
  EXPECT_NE(probe(wire, base::kMillisecond), "");
  std::vector<std::vector<std::byte>> others;  // that would get its memory
  for (int i = 0; i < 100; ++i) others.emplace_back(100'000);
  wire.come_late();
  for (const auto& other : others) EXPECT_EQ(other.back(), std::byte{0});
}

TEST(WireProbe, NamesTheRankFromWhichWrongBytesCome) {
  EXPECT_EQ(probe_with(WithPeer::Fault::kWrongData), "wrong bytes came from rank 1");
  EXPECT_EQ(probe_with(WithPeer::Fault::kWrongControl), "wrong control bytes came from rank 1");
}

}  // namespace
}  // namespace smp::d2d
