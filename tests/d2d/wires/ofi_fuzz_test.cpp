// Damaged frames over libfabric: d2d/wire/wire_fuzz.h.
#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "d2d/wire/network_wire_contract.h"
#include "d2d/wire/wire_end.h"
#include "d2d/wire/wire_fuzz.h"
#include "d2d/wire/wire_pattern.h"
#include "d2d/wires/ofi/ofi_wire.h"

namespace smp::d2d {
namespace ofi_fuzz_test {

using testing::HasSubstr;

constexpr std::size_t kFrameBytes = 512;

/// Damages one of the frames that it sends.
class DamagingEndpoint final : public OfiEndpoint {
 public:
  int send(std::span<const std::byte> bytes, void* descriptor, std::uint64_t peer,
           OfiOperation& operation) override {
    if (grants_twice && trailer_of(bytes).kind == OfiFrameKind::kGrants) {
      auto* const frame = const_cast<std::byte*>(bytes.data());  // of kFrameBytes
      std::memmove(frame + sizeof(OfiGrant), frame, bytes.size());
      return OfiEndpoint::send({frame, bytes.size() + sizeof(OfiGrant)}, descriptor, peer,
                               operation);
    }
    if (!damage || frames_before-- != 0) {
      return OfiEndpoint::send(bytes, descriptor, peer, operation);
    }
    auto other = damaged({bytes.begin(), bytes.end()});
    other.resize(std::min(other.size(), kFrameBytes));
    auto* const frame = const_cast<std::byte*>(bytes.data());  // of kFrameBytes
    std::copy(other.begin(), other.end(), frame);
    return OfiEndpoint::send({frame, other.size()}, descriptor, peer, operation);
  }

  std::optional<DamagedBytes> damage = std::nullopt;
  std::uint64_t frames_before = 0;
  bool grants_twice = false;

 private:
  Bytes damaged(Bytes frame) {
    if (frame.size() < sizeof(OfiTrailer)) return frame;
    auto trailer = trailer_of(frame);
    if (trailer.kind == OfiFrameKind::kGrants) return with_damaged_grant(std::move(frame));
    if (damage->one_in(2)) return damage->of(std::move(frame));
    damage_one_of(trailer);
    std::memcpy(frame.data() + frame.size() - sizeof trailer, &trailer, sizeof trailer);
    return frame;
  }
  void damage_one_of(OfiTrailer& trailer) {
    const auto change = [this](auto& value) {
      value = static_cast<std::remove_reference_t<decltype(value)>>(
          damage->number(static_cast<std::uint64_t>(value)));
    };
    switch (damage->below(6)) {
      case 0:
        return change(trailer.number);
      case 1:
        return change(trailer.message_bytes);
      case 2:
        return change(trailer.source);
      case 3:
        return change(trailer.received);
      case 4:
        return change(trailer.kind);
      default:
        return change(trailer.last);
    }
  }
  /// But for address and key: whether these are right only libfabric can tell.
  Bytes with_damaged_grant(Bytes frame) {
    OfiGrant grant;
    std::memcpy(&grant, frame.data(), sizeof grant);
    switch (damage->below(5)) {
      case 0:
        grant.id = damage->number(grant.id);
        break;
      case 1:
        grant.bytes = damage->number(grant.bytes);
        break;
      case 2:
        grant.segment = static_cast<std::uint32_t>(damage->number(grant.segment));
        break;
      case 3:
        grant.receive = static_cast<std::uint32_t>(damage->number(grant.receive));
        break;
      default:  // twice
        frame.insert(frame.begin(), frame.begin(), frame.begin() + sizeof grant);
    }
    std::memcpy(frame.data(), &grant, sizeof grant);
    return frame;
  }
};

/// Two ranks that send each other control bytes and data, until one complains or all is there.
class OfiRound {
 public:
  explicit OfiRound(std::uint64_t seed) : random_(seed) {
    ::setenv("FI_TCP_IFACE", "lo", /*overwrite=*/1);
    const auto make_endpoint = [this] {
      auto endpoint = std::make_unique<DamagingEndpoint>();
      endpoints_.push_back(endpoint.get());
      return endpoint;
    };
    for (auto& wire :
         connect_wires<OfiWire>(Members::all(2), make_endpoint,
                                OfiWireOptions{.frame_bytes = kFrameBytes, .segment_bytes = 700})) {
      ends_.push_back(std::make_unique<WireEnd>(std::move(wire)));
    }
    auto& damaging = *endpoints_[random_.below(2)];
    damaging.damage.emplace(seed);
    damaging.frames_before = random_.below(12);
  }
  /// Instead of the damage.
  void grant_twice() {
    for (auto* const endpoint : endpoints_) {
      endpoint->damage.reset();
      endpoint->grants_twice = true;
    }
  }
  /// What somebody said. Whoever is told to wait for a frame that never comes may wait.
  std::string run() {
    return complaint([&] {
      start();
      for (int i = 0; i < 400 && !all_is_there(); ++i) {
        for (auto& end : ends_) end->wire().poll();
      }
    });
  }
  void expect_nothing_beside_its_place() {
    for (auto& place : places_) EXPECT_TRUE(place.intact());
  }

 private:
  static constexpr std::size_t kTransfers = 3;

  void start() {
    places_.resize(2 * kTransfers);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const GlobalRank peer(1 - static_cast<int>(rank));
      for (std::size_t i = 0; i < kTransfers; ++i) {
        auto& place = places_[rank * kTransfers + i] = GuardedPlace(kSizes[i]);
        ends_[rank]->wire().receive(place.bytes(), peer, i, i);
        ends_[rank]->wire().send(bytes_.at(i), peer, i, i);
        ends_[rank]->post(peer, Bytes(random_.below(1'500)));
      }
    }
  }
  bool all_is_there() {
    return std::all_of(ends_.begin(), ends_.end(), [](const auto& end) {
      return end->received.size() == kTransfers && end->sent.size() == kTransfers &&
             end->control[1 - end->rank()].size() == kTransfers && end->wire().drained();
    });
  }

  static constexpr std::size_t kSizes[kTransfers] = {100, 701, 3'000};
  DamagedBytes random_;
  std::vector<Bytes> bytes_{Bytes(kSizes[0]), Bytes(kSizes[1]), Bytes(kSizes[2])};
  std::vector<GuardedPlace> places_;
  std::vector<DamagingEndpoint*> endpoints_;
  std::vector<std::unique_ptr<WireEnd>> ends_;
};

TEST(OfiFuzz, AFrameOverLibfabricIsReadOrItsSenderIsLost) {
  int refused = 0;
  const int rounds = fuzz_rounds(40);
  for (int round = 0; round < rounds; ++round) {
    OfiRound two(static_cast<std::uint64_t>(round));
    const std::string text = two.run();
    two.expect_nothing_beside_its_place();
    if (text.empty()) continue;
    ++refused;
    EXPECT_THAT(text, HasSubstr("rank ")) << "round " << round;
  }
  EXPECT_GT(refused, rounds / 4);
}

/// Else it would be written twice, the second time from memory that is its owner's again.
TEST(OfiFuzz, ATransferIsGrantedOnce) {
  OfiRound two(1);
  two.grant_twice();
  EXPECT_THAT(two.run(), testing::ContainsRegex("rank [01] granted transfer [0-2] twice"));
}

}  // namespace ofi_fuzz_test
}  // namespace smp::d2d
