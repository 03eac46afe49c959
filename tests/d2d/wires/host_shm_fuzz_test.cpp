// Damaged records in shared memory: d2d/wire/wire_fuzz.h.
#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/memory/shared_memory.h"
#include "d2d/wire/wire_end.h"
#include "d2d/wire/wire_fuzz.h"
#include "d2d/wire/wire_pattern.h"
#include "d2d/wires/host_shm_cluster.h"
#include "d2d/wires/shm/host_shm_wire.h"
#include "d2d/wires/shm/shm_ring.h"

namespace smp::d2d {
namespace host_shm_fuzz_test {

using testing::HasSubstr;

struct alignas(ShmRing::kLine) RingLine {
  std::byte bytes[ShmRing::kLine] = {};
};

TEST(HostShmFuzz, ARecordInSharedMemoryLiesInTheRingOrIsRefused) {
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
  /// What is said of one record.
  std::string read(const ShmPiece& piece) {
    return complaint([&] {
      end_->wire().receive(place_.bytes(), GlobalRank(1), piece.id, 1);
      const auto record = bytes_of(piece);
      std::copy(record.begin(), record.end(), other_->begin(record.size()));
      other_->commit(kInBlock);
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

TEST(HostShmFuzz, APieceLiesInOneBlock) {
  EXPECT_EQ(HostShmRound(1).read({.id = 1, .offset = 0, .block = 2, .size = 4096}), "");
  for (const ShmPiece& piece : {ShmPiece{.id = 1, .offset = 0, .block = 2, .size = 4097},
                                ShmPiece{.id = 1, .offset = 0, .block = 2, .size = 0},
                                ShmPiece{.id = 1, .offset = 0, .block = 3, .size = 4096}}) {
    EXPECT_THAT(
        HostShmRound(1).read(piece),
        HasSubstr(base::concat("rank 1 sent ", piece.size, " bytes in block ", piece.block)));
  }
  EXPECT_THAT(HostShmRound(1).read({.id = 1, .offset = 1, .block = 0, .size = 10}),
              HasSubstr("which sent 10 at 1"));
}

TEST(HostShmFuzz, ARecordOfAHostShmWireIsReadOrRefused) {
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

}  // namespace host_shm_fuzz_test
}  // namespace smp::d2d
