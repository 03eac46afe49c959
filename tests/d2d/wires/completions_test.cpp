// d2d/wires/completions_test.cpp: each transfer is told once, sends are counted until they are, and
// a handler may begin others.
#include "d2d/wires/completions.h"

#include <gmock/gmock.h>

#include <functional>
#include <utility>

namespace smp::d2d {
namespace completions_test {

using testing::ElementsAre;
using testing::IsEmpty;

class Told final : public WireHandler {
 public:
  void on_control(GlobalRank, ByteBuffer&&) override {}
  void on_sent(Token token) override {
    sent.push_back(token);
    if (on_next) std::exchange(on_next, nullptr)();
  }
  void on_received(Token token) override { received.push_back(token); }

  std::vector<Token> sent, received;
  std::function<void()> on_next;
};

TEST(Completions, AreToldOnceInTheirOrder) {
  Completions completions;
  Told told;
  EXPECT_FALSE(completions.tell(told)) << "there is nothing";
  completions.begin_send();
  completions.begin_send();
  completions.note_sent(7);
  completions.note_received(3);
  completions.note_received(4);
  EXPECT_EQ(completions.sends(), 2U) << "noted is not told";
  EXPECT_TRUE(completions.tell(told));
  EXPECT_THAT(told.sent, ElementsAre(7U));
  EXPECT_THAT(told.received, ElementsAre(3U, 4U));
  EXPECT_EQ(completions.sends(), 1U);
  EXPECT_FALSE(completions.tell(told));
}

TEST(Completions, TellNextTimeWhatTheHandlerBegan) {
  Completions completions;
  Told told;
  std::size_t sends_seen = 99;
  completions.begin_send();
  completions.note_sent(1);
  told.on_next = [&] {
    sends_seen = completions.sends();
    completions.begin_send();
    completions.note_sent(2);
  };
  EXPECT_TRUE(completions.tell(told));
  EXPECT_EQ(sends_seen, 0U) << "what is told has left";
  EXPECT_THAT(told.sent, ElementsAre(1U));
  EXPECT_TRUE(completions.tell(told));
  EXPECT_THAT(told.sent, ElementsAre(1U, 2U));
  EXPECT_THAT(told.received, IsEmpty());
  EXPECT_EQ(completions.sends(), 0U);
}

}  // namespace completions_test
}  // namespace smp::d2d
