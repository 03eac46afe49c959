// Frames that come in any order become the messages that were sent.
#include "d2d/wires/ofi/ofi_inbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "d2d/wires/ofi/ofi_outbox.h"
#include "smp/error.h"

namespace smp::d2d {
namespace ofi_inbox_test {

using ::testing::HasSubstr;

ByteBuffer frame_of(std::string_view text, OfiTrailer trailer,
                    const std::vector<TransferId>& received = {}) {
  trailer.received = static_cast<std::uint16_t>(received.size());
  const auto ids = received.size() * sizeof(TransferId);
  ByteBuffer frame;
  frame.resize(text.size() + ids + sizeof trailer);
  std::memcpy(frame.data(), text.data(), text.size());
  if (ids > 0) std::memcpy(frame.data() + text.size(), received.data(), ids);
  std::memcpy(frame.data() + text.size() + ids, &trailer, sizeof trailer);
  return frame;
}

std::string text_of(const ByteBuffer& message) {
  return {reinterpret_cast<const char*>(message.span().data()), message.size()};
}

class OfiInboxTest : public ::testing::Test {
 protected:
  /// What the frames that can be taken now complete.
  std::vector<std::string> take_all() {
    std::vector<std::string> messages;
    while (inbox_.has_next() && !inbox_.waits()) {
      if (auto message = inbox_.take(pool_)) messages.push_back(text_of(*message));
    }
    return messages;
  }

  OfiInbox inbox_{GlobalRank(3)};
  BufferPool pool_;
};

/// Of random lengths, in frames with room for 24 bytes, of which later ones overtake.
TEST_F(OfiInboxTest, GivesTheMessagesOfAnOutbox) {
  std::mt19937 random(1);
  std::vector<std::string> messages;
  OfiOutbox outbox;
  for (int i = 0; i < 200; ++i) {
    const std::string text(random() % 100, static_cast<char>('a' + i % 26));
    outbox.put(OfiFrameKind::kControl, frame_of(text, {}));
    messages.push_back(text_of(frame_of(text, {})));
    if (i % 7 == 0) outbox.put(OfiFrameKind::kNothing);
  }
  std::vector<ByteBuffer> frames;
  std::vector<std::byte> memory(24 + sizeof(OfiTrailer));
  while (!outbox.empty()) {
    const auto next = outbox.write_next(memory);
    const std::string_view text(reinterpret_cast<const char*>(memory.data()), next.bytes);
    frames.push_back(frame_of(text, next.trailer));
    outbox.pass(next, pool_);
  }
  std::shuffle(frames.begin(), frames.end(), random);
  std::vector<std::string> read;
  for (auto& frame : frames) {
    ASSERT_TRUE(inbox_.put(std::move(frame)));
    for (auto& message : take_all()) read.push_back(std::move(message));
  }
  EXPECT_EQ(read, messages);
  EXPECT_EQ(inbox_.next(), frames.size());
}

TEST_F(OfiInboxTest, TakesEachNumberOnce) {
  EXPECT_TRUE(inbox_.put(frame_of("b", {.number = 1, .message_bytes = 1})));
  EXPECT_FALSE(inbox_.put(frame_of("b", {.number = 1, .message_bytes = 1})));
  EXPECT_FALSE(inbox_.has_next());
  EXPECT_TRUE(inbox_.put(frame_of("a", {.number = 0, .message_bytes = 1})));
  EXPECT_EQ(take_all(), (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(inbox_.put(frame_of("a", {.number = 0, .message_bytes = 1})));
}

TEST_F(OfiInboxTest, AFrameWaitsForWhatItSaysWasReceived) {
  ASSERT_TRUE(inbox_.put(frame_of("a", {.number = 0, .message_bytes = 1}, {4, 5, 6})));
  std::vector<TransferId> told;
  const auto note = [&](TransferId id) {
    told.push_back(id);
    return id != 5;
  };
  inbox_.note_received(note);
  inbox_.note_received(note);
  EXPECT_EQ(told, (std::vector<TransferId>{4, 5, 6})) << "each once";
  EXPECT_TRUE(inbox_.waits());
  EXPECT_FALSE(inbox_.is_over());
  EXPECT_TRUE(inbox_.is_over());
  EXPECT_EQ(take_all(), std::vector<std::string>{"a"});

  ASSERT_TRUE(inbox_.put(frame_of("", {.number = 1, .kind = OfiFrameKind::kNothing}, {7})));
  EXPECT_EQ(inbox_.next_kind(), OfiFrameKind::kNothing);
  inbox_.note_received(note);
  EXPECT_EQ(told.back(), 7U) << "those of the next frame";
}

TEST_F(OfiInboxTest, RefusesPartsThatDoNotFit) {
  ASSERT_TRUE(inbox_.put(frame_of("ab", {.number = 0, .message_bytes = 4, .last = 0})));
  EXPECT_TRUE(take_all().empty());
  ASSERT_TRUE(inbox_.put(frame_of("c", {.number = 1, .message_bytes = 4, .last = 1})));
  try {
    take_all();
    FAIL() << "a byte is missing";
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 3 sent 3 bytes of a message of 4"));
  }
}

}  // namespace ofi_inbox_test
}  // namespace smp::d2d
