// Messages are cut into frames, and say what was received.
#include "d2d/wires/ofi/ofi_outbox.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace smp::d2d {
namespace ofi_outbox_test {

constexpr std::size_t kId = sizeof(TransferId);

ByteBuffer bytes_of(std::string_view text) {
  ByteBuffer buffer;
  buffer.resize(text.size());
  std::memcpy(buffer.data(), text.data(), text.size());
  return buffer;
}

class OfiOutboxTest : public ::testing::Test {
 protected:
  /// Frames with room for `room` bytes before their trailer.
  explicit OfiOutboxTest(std::size_t room = 3 * kId + 4) : memory_(room + sizeof(OfiTrailer)) {}

  /// The text of the next frame, what it says was received, and whether it ended a message.
  struct Sent {
    std::string text;
    std::vector<TransferId> received;
    bool ended = false;
    OfiTrailer trailer;
  };
  Sent send_next() {
    const auto next = outbox_.write_next(memory_);
    Sent sent;
    sent.trailer = next.trailer;
    sent.received.resize(next.trailer.received);
    const auto text = next.bytes - sent.received.size() * kId;
    sent.text.assign(reinterpret_cast<const char*>(memory_.data()), text);
    if (!sent.received.empty()) {
      std::memcpy(sent.received.data(), memory_.data() + text, next.bytes - text);
    }
    sent.ended = outbox_.pass(next, pool_);
    return sent;
  }

  OfiOutbox outbox_;
  BufferPool pool_;
  std::vector<std::byte> memory_;
};

TEST_F(OfiOutboxTest, CutsALongMessage) {
  const std::string text = "control bytes that need more than two frames";
  outbox_.put(OfiFrameKind::kControl, bytes_of(text));
  std::string sent;
  for (std::uint64_t number = 0; !outbox_.empty(); ++number) {
    const auto frame = send_next();
    EXPECT_EQ(frame.trailer.number, number);
    EXPECT_EQ(frame.trailer.message_bytes, text.size());
    EXPECT_EQ(frame.trailer.last != 0, frame.ended);
    sent += frame.text;
    EXPECT_EQ(frame.ended, sent == text);
  }
  EXPECT_EQ(sent, text);
}

TEST_F(OfiOutboxTest, KeepsTheOrderAndTheKinds) {
  outbox_.put(OfiFrameKind::kControl, bytes_of("first"));
  outbox_.put(OfiFrameKind::kNothing);
  outbox_.put(OfiFrameKind::kGoodbye);
  EXPECT_EQ(send_next().text, "first");
  EXPECT_EQ(send_next().trailer.kind, OfiFrameKind::kNothing);
  const auto last = send_next();
  EXPECT_EQ(last.trailer.kind, OfiFrameKind::kGoodbye);
  EXPECT_EQ(last.trailer.number, 2U);
  EXPECT_TRUE(outbox_.empty());
}

TEST_F(OfiOutboxTest, EndsAMessageWhenAllThatWasReceivedIsTold) {
  for (TransferId id = 1; id <= 7; ++id) outbox_.tell(id);
  outbox_.put(OfiFrameKind::kControl, bytes_of("x"));
  std::vector<TransferId> told;
  std::string text;
  while (!outbox_.empty()) {
    const auto frame = send_next();
    told.insert(told.end(), frame.received.begin(), frame.received.end());
    text += frame.text;
    EXPECT_EQ(frame.ended, told.size() == 7 && text == "x");
  }
  EXPECT_EQ(told, (std::vector<TransferId>{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(outbox_.untold(), 0U);
}

TEST_F(OfiOutboxTest, IsNotMovedOnByWriting) {
  outbox_.tell(5);
  outbox_.put(OfiFrameKind::kControl, bytes_of("again"));
  static_cast<void>(outbox_.write_next(memory_));  // libfabric did not take it
  const auto frame = send_next();
  EXPECT_EQ(frame.text, "again");
  EXPECT_EQ(frame.trailer.number, 0U);
  EXPECT_EQ(frame.received, std::vector<TransferId>{5});
}

}  // namespace ofi_outbox_test
}  // namespace smp::d2d
