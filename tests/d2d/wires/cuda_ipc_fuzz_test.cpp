// Damaged messages between GPUs: d2d/wire/wire_fuzz.h.
#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "d2d/wire/wire_end.h"
#include "d2d/wire/wire_fuzz.h"
#include "d2d/wire/wire_pattern.h"
#include "d2d/wires/cuda/cuda_ipc_wire.h"
#include "d2d/wires/fake_cuda.h"
#include "d2d/wires/local/local_wire.h"

namespace smp::d2d {
namespace cuda_ipc_fuzz_test {

using testing::AnyOf;
using testing::HasSubstr;

/// As CudaIpcWire writes them.
struct CudaPiece {
  std::uint64_t id, offset, size;
  std::uint32_t page, event;
};
enum CudaMessage : std::uint32_t { kControlBytes, kPieceIsThere, kPieceIsFree };

Bytes cuda_message(const CudaPiece& piece, CudaMessage kind) {
  Bytes bytes = bytes_of(piece);
  const Bytes end = bytes_of(kind);
  bytes.insert(bytes.end(), end.begin(), end.end());
  return bytes;
}

constexpr CudaIpcOptions kFewPages{.page_bytes = 4096, .pages = 4, .piece_pages = 2, .events = 3};

/// A wire, and another rank of which only what it says is played.
class CudaRound {
 public:
  explicit CudaRound(std::uint64_t seed)
      : random_(seed),
        cuda_(std::make_shared<FakeCuda>(seed)),
        other_(std::make_unique<LocalWire>(hub_, GlobalRank(1))) {
    const auto make = [&](const std::shared_ptr<LocalHub>& hub, int rank) {
      return std::make_unique<CudaIpcWire>(std::make_unique<LocalWire>(hub, GlobalRank(rank)),
                                           std::make_unique<FakeCudaDevice>(cuda_, rank),
                                           std::vector<std::string>{"0", "1"}, kFewPages);
    };
    // Whose memory and events the other rank offers.
    owner_ = make(std::make_shared<LocalHub>(2), 1);
    auto wire = make(hub_, 0);
    wire->connect({wire->offer(), owner_->offer()});
    wire_ = wire.get();
    end_ = std::make_unique<WireEnd>(std::move(wire));
  }
  ~CudaRound() {
    cuda_->finish();
    wire_->disconnect();
  }
  CudaRound(const CudaRound&) = delete;
  CudaRound& operator=(const CudaRound&) = delete;

  std::string run() {
    return complaint([&] {
      wire_->receive(place_.bytes(), GlobalRank(1), 1, 1);
      for (TransferId id = 0; id < 3; ++id) wire_->send(bytes_, GlobalRank(1), id, id);
      for (std::uint64_t i = 0; i < 12; ++i) {
        other_.wire().poll();
        post_bytes(other_.wire(), GlobalRank(0), next_message());
        wire_->poll();
      }
      for (int i = 0; i < 20; ++i) wire_->poll();
    });
  }
  bool intact() const { return place_.intact(); }

 private:
  static constexpr std::size_t kBytes = 20'000;

  /// What the other rank would say, as a rule damaged.
  Bytes next_message() {
    Bytes message = right_message();
    if (random_.one_in(3)) return message;
    if (random_.one_in(2)) return random_.of(std::move(message));
    if (message.size() != sizeof(CudaPiece) + sizeof(CudaMessage)) return message;
    CudaPiece piece;
    std::memcpy(&piece, message.data(), sizeof piece);
    damage_one_of(piece);
    std::memcpy(message.data(), &piece, sizeof piece);
    return message;
  }
  void damage_one_of(CudaPiece& piece) {
    const auto change = [this](auto& value) {
      value = static_cast<std::remove_reference_t<decltype(value)>>(random_.number(value));
    };
    switch (random_.below(5)) {
      case 0:
        return change(piece.id);
      case 1:
        return change(piece.offset);
      case 2:
        return change(piece.size);
      case 3:
        return change(piece.page);
      default:
        return change(piece.event);
    }
  }
  Bytes right_message() {
    if (random_.one_in(4)) return cuda_message({}, kControlBytes);
    if (random_.one_in(2) && !other_.control[0].empty()) {  // gives back a piece that came
      Bytes message = other_.control[0].front();
      other_.control[0].erase(other_.control[0].begin());
      const Bytes kind = bytes_of(kPieceIsFree);
      if (message.size() < sizeof(CudaPiece)) return message;
      std::copy(kind.begin(), kind.end(), message.end() - static_cast<std::ptrdiff_t>(kind.size()));
      return message;
    }
    constexpr std::uint64_t kPieceBytes = 8192;
    const auto size = std::min<std::uint64_t>(kPieceBytes, kBytes - std::min(kBytes, sent_));
    const CudaPiece piece{1, sent_, size, static_cast<std::uint32_t>(sent_ / kPieceBytes % 2 * 2),
                          static_cast<std::uint32_t>(sent_ / kPieceBytes % 3)};
    sent_ += size;
    return cuda_message(piece, kPieceIsThere);
  }

  DamagedBytes random_;
  std::shared_ptr<FakeCuda> cuda_;
  std::shared_ptr<LocalHub> hub_ = std::make_shared<LocalHub>(2);
  Bytes bytes_ = Bytes(kBytes);
  GuardedPlace place_{kBytes};
  std::size_t sent_ = 0;  // by the other rank
  std::unique_ptr<CudaIpcWire> owner_;
  WireEnd other_;
  std::unique_ptr<WireEnd> end_;
  CudaIpcWire* wire_ = nullptr;
};

TEST(CudaIpcFuzz, AMessageBetweenGpusIsReadOrRefused) {
  int refused = 0;
  const int rounds = fuzz_rounds(5'000);
  for (int round = 0; round < rounds; ++round) {
    CudaRound two(static_cast<std::uint64_t>(round));
    const std::string text = two.run();
    EXPECT_TRUE(two.intact()) << "round " << round;
    if (text.empty()) continue;
    ++refused;
    EXPECT_THAT(text, AnyOf(HasSubstr("rank 1"), HasSubstr("bytes"))) << "round " << round;
  }
  EXPECT_GT(refused, rounds / 2);
}

}  // namespace cuda_ipc_fuzz_test
}  // namespace smp::d2d
