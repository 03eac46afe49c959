// Damaged bytes of another rank: whoever reads them says what makes no sense, or takes them for
// what they may be; nobody crashes, waits in a loop, sets too much memory aside, or reads and
// writes beside what is his. SMP_FUZZ_ROUNDS=10000 tries a hundred times as many.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/shared_memory.h"
#include "d2d/damaged_bytes.h"
#include "d2d/fake_cuda.h"
#include "d2d/frame_codec.h"
#include "d2d/host_shm_cluster.h"
#include "d2d/network_wire_contract.h"
#include "d2d/wire_end.h"
#include "d2d/wire_pattern.h"
#include "d2d/wires/cuda_ipc_wire.h"
#include "d2d/wires/host_shm_wire.h"
#include "d2d/wires/local_wire.h"
#include "d2d/wires/ofi_wire.h"
#include "d2d/wires/shm_ring.h"
#include "smp/error.h"

namespace smp::d2d {
namespace wire_format_fuzz_test {

using testing::AnyOf;
using testing::HasSubstr;

/// The text of the error by which `run` says what is wrong; empty: it went well. Other errors fail
/// the test, and so does one that says nothing.
template <class Run>
std::string complaint(const Run& run) {
  std::string text;
  try {
    run();
    return "";
  } catch (const InternalError& error) {
    text = error.what();
  } catch (const PeerLostError& error) {
    text = error.what();
  } catch (const UnsupportedError& error) {
    text = error.what();
  }
  EXPECT_FALSE(text.empty());
  return text;
}

/// Bytes in memory of their own, so that a memory checker sees who reads beside them.
class ExactBytes {
 public:
  explicit ExactBytes(const Bytes& bytes)
      : memory_(std::make_unique_for_overwrite<std::byte[]>(bytes.size())), size_(bytes.size()) {
    std::copy(bytes.begin(), bytes.end(), memory_.get());
  }
  std::span<const std::byte> span() const { return {memory_.get(), size_}; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t size_;
};

void post_bytes(Wire& wire, GlobalRank to, const Bytes& bytes) {
  ByteBuffer buffer = wire.buffers().take();
  buffer.resize(bytes.size());
  std::copy(bytes.begin(), bytes.end(), buffer.data());
  wire.post(to, std::move(buffer));
}

template <class Record>
Bytes bytes_of(const Record& record) {
  Bytes bytes(sizeof record);
  std::memcpy(bytes.data(), &record, sizeof record);
  return bytes;
}

// ---- frames ------------------------------------------------------------------------------------

Bytes control_of(std::uint64_t seed) {
  DamagedBytes random(seed);
  std::vector<at::Tensor> tensors;
  for (auto count = random.below(6); count > 0; --count) {
    const auto elements = static_cast<std::int64_t>(random.below(2'000));
    tensors.push_back(random.one_in(5) ? at::Tensor() : at::ones({2, elements}, at::kFloat));
  }
  ByteBuffer control;
  std::vector<DataTensor> data;
  TransferId next = random.below(1'000);
  const Bytes header = random.noise(random.below(40));
  encode_frame({random.one_in(2) ? Port::kServer : Port::kCollectives, header, "a body", tensors},
               {0, kNoWire, kNoWire}, next, control, data);
  return {control.span().begin(), control.span().end()};
}

TEST(WireFormatFuzz, AFrameIsReadOrSaidToBeMalformed) {
  constexpr FrameLimits kLimits{.tensor_bytes = 1 << 20};
  int refused = 0;
  const int rounds = fuzz_rounds(20'000);
  for (int round = 0; round < rounds; ++round) {
    DamagedBytes damage(static_cast<std::uint64_t>(round));
    const ExactBytes bytes(damage.of(control_of(damage.below(50))));
    std::vector<DataTensor> data;
    const std::string text = complaint([&] {
      const ReadFrame frame = decode_frame(bytes.span(), data, kLimits);
      std::size_t set_aside = 0;
      for (const at::Tensor& tensor : frame.tensors) {
        if (tensor.defined()) set_aside += tensor.nbytes();
      }
      EXPECT_LE(set_aside, kLimits.tensor_bytes + bytes.span().size()) << "round " << round;
      EXPECT_LE(frame.header.size() + frame.body.size(), bytes.span().size());
    });
    if (text.empty()) continue;
    ++refused;
    EXPECT_THAT(text, AnyOf(HasSubstr("malformed"), HasSubstr("device"))) << "round " << round;
  }
  EXPECT_GT(refused, rounds / 3);
}

// ---- libfabric ---------------------------------------------------------------------------------

constexpr std::size_t kFrameBytes = 512;

/// Damages one of the frames that it sends.
class DamagingEndpoint final : public OfiEndpoint {
 public:
  int send(std::span<const std::byte> bytes, void* descriptor, std::uint64_t peer,
           OfiOperation& operation) override {
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

TEST(WireFormatFuzz, AFrameOverLibfabricIsReadOrItsSenderIsLost) {
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

// ---- between GPUs ------------------------------------------------------------------------------

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

TEST(WireFormatFuzz, AMessageBetweenGpusIsReadOrRefused) {
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

// ---- shared memory -----------------------------------------------------------------------------

struct alignas(ShmRing::kLine) RingLine {
  std::byte bytes[ShmRing::kLine] = {};
};

TEST(WireFormatFuzz, ARecordInSharedMemoryLiesInTheRingOrIsRefused) {
  constexpr std::size_t kLines = 32;
  int refused = 0;
  const int rounds = fuzz_rounds(50'000);
  for (int round = 0; round < rounds; ++round) {
    DamagedBytes damage(static_cast<std::uint64_t>(round));
    std::vector<RingLine> memory(kLines + 1);
    auto* const start = memory[0].bytes;
    ShmRingWriter writer(start, kLines);
    ShmRingReader reader(start, kLines);
    for (auto records = damage.below(60); records > 0; --records) {  // wherever the ring stands
      ASSERT_NE(writer.begin(damage.below(200)), nullptr);
      writer.commit(1);
      ASSERT_TRUE(reader.front());
      reader.pop();
    }
    ASSERT_NE(writer.begin(damage.below(200)), nullptr);
    writer.commit(1);
    for (RingLine& line : memory) {  // the header of what comes next among them
      std::uint64_t header = 0;
      std::memcpy(&header, line.bytes, sizeof header);
      if (&line == &memory[0] || header == 0) continue;
      header = damage.one_in(2) ? damage.number(header)
                                : (header & ~std::uint64_t{0xffff'ffff}) | damage.below(2'100);
      std::memcpy(line.bytes, &header, sizeof header);
    }
    const std::string text = complaint([&] {
      for (std::size_t i = 0; i <= kLines; ++i) {
        const auto record = reader.front();
        if (!record) return;
        const auto* const first = record->payload.data();
        ASSERT_GE(first, start + ShmRing::kLine) << "round " << round;
        ASSERT_LE(first + record->payload.size(), start + ShmRing::bytes_for(kLines))
            << "round " << round;
        reader.pop();
      }
    });
    if (text.empty()) continue;
    ++refused;
    EXPECT_THAT(text, HasSubstr("a record in shared memory")) << "round " << round;
  }
  EXPECT_GT(refused, rounds / 10);
}

/// As HostShmWire writes them.
struct ShmPiece {
  std::uint64_t id, offset;
  std::uint32_t block, size;
};
struct ShmOffer {
  std::uint64_t id, address, size, block;
};
enum ShmRecord : std::uint32_t { kWhole = 1, kPart, kInBlock, kOffered };

/// A wire, and another rank of which only what it writes is played.
class HostShmRound {
 public:
  explicit HostShmRound(std::uint64_t seed) : random_(seed) {
    const auto bytes = HostShmSegment::bytes_for(2, kOptions);
    std::vector<base::SharedMemory> owned, mapped;
    for (int i = 0; i < 2; ++i) owned.push_back(*base::SharedMemory::make(bytes));
    for (const auto& memory : owned) {
      mapped.push_back(*base::SharedMemory::open(memory.address(), bytes));
    }
    end_ = std::make_unique<WireEnd>(
        std::make_unique<HostShmWire>(GlobalRank(0), Members::all(2), std::move(mapped), kOptions,
                                      own_process(Members::all(2), Fetches::kLarge)));
    segment_.emplace(std::move(owned[1]), 2, kOptions);
    other_.emplace(segment_->ring(0), kOptions.ring_lines);
  }
  std::string run() {
    return complaint([&] {
      end_->wire().receive(place_.bytes(), GlobalRank(1), 1, 1);
      for (int i = 0; i < 12; ++i) {
        write();
        end_->wire().poll();
      }
      Bytes late(kBytes);  // what nobody received so far
      end_->wire().receive(late, GlobalRank(1), 2, 2);
      end_->wire().poll();
    });
  }
  bool intact() const { return place_.intact(); }

 private:
  static constexpr HostShmOptions kOptions{.ring_lines = 64, .block_bytes = 4096, .blocks = 3};
  static constexpr std::size_t kBytes = 10'000;

  void write() {
    auto kind = static_cast<std::uint32_t>(random_.one_in(3) ? kOffered : kInBlock);
    Bytes record = kind == kOffered ? bytes_of(offer()) : bytes_of(piece());
    if (random_.one_in(4)) record = random_.of(std::move(record));
    if (random_.one_in(8)) kind = static_cast<std::uint32_t>(1 + random_.below(6));
    record.resize(std::min(record.size(), other_->most_payload()));
    auto* const place = other_->begin(record.size());
    if (place == nullptr) return;
    std::copy(record.begin(), record.end(), place);
    other_->commit(kind);
  }
  template <class Value>
  Value damaged(Value value) {
    return random_.one_in(6) ? static_cast<Value>(random_.number(value)) : value;
  }
  ShmPiece piece() {
    const auto size = std::min<std::size_t>(kOptions.block_bytes, kBytes - sent_);
    const ShmPiece piece{damaged<std::uint64_t>(random_.one_in(3) ? 2 : 1),
                         damaged<std::uint64_t>(sent_),
                         damaged(static_cast<std::uint32_t>(sent_ / kOptions.block_bytes)),
                         damaged(static_cast<std::uint32_t>(size))};
    if (piece.id == 1) sent_ += size;
    return piece;
  }
  ShmOffer offer() {
    return {damaged<std::uint64_t>(2), damaged(reinterpret_cast<std::uint64_t>(offered_.data())),
            damaged<std::uint64_t>(kBytes), damaged<std::uint64_t>(random_.below(3))};
  }

  DamagedBytes random_;
  Bytes offered_ = Bytes(kBytes);
  GuardedPlace place_{kBytes};
  std::size_t sent_ = 0;  // by the other rank
  std::unique_ptr<WireEnd> end_;
  std::optional<HostShmSegment> segment_;
  std::optional<ShmRingWriter> other_;
};

TEST(WireFormatFuzz, ARecordOfAHostShmWireIsReadOrRefused) {
  int refused = 0;
  const int rounds = fuzz_rounds(3'000);
  for (int round = 0; round < rounds; ++round) {
    HostShmRound two(static_cast<std::uint64_t>(round));
    const std::string text = two.run();
    EXPECT_TRUE(two.intact()) << "round " << round;
    if (text.empty()) continue;
    ++refused;
    EXPECT_THAT(text, HasSubstr("rank 1")) << "round " << round;
  }
  EXPECT_GT(refused, rounds / 2);
}

}  // namespace wire_format_fuzz_test
}  // namespace smp::d2d
