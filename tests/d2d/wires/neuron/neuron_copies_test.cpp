// Copies are done late, and what went wrong is found in the way of each release.
#include "d2d/wires/neuron/neuron_copies.h"

#include <gmock/gmock.h>

#include <cstring>
#include <map>
#include <vector>

#include "d2d/wire/wire_end.h"
#include "d2d/wires/neuron/neuron_pool.h"
#include "d2d/wires/neuron/played_neuron.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace neuron_copies_test {

using Direction = NeuronCopies::Direction;
using testing::AllOf;
using testing::HasSubstr;

class NeuronCopiesOf : public testing::TestWithParam<int> {
 protected:
  static constexpr std::size_t kBytes = 5000;
  static constexpr RelativeCore kCore{1};

  NeuronCopiesOf()
      : neuron_(GetParam()), runtime_(neuron_.library(), GlobalRank(2), neuron_.claim(2, 3)) {}
  NeuronPlace place(int number) { return pool_.require({block(number), kBytes}); }
  std::byte* block(int number) {
    while (static_cast<int>(blocks_.size()) <= number) blocks_.push_back(pool_.allocate(kBytes));
    return blocks_[static_cast<std::size_t>(number)];
  }
  std::byte* inside(int number) {
    const auto at = place(number);
    return neuron_.control().look_into(at.tensor) + at.offset;
  }
  /// Until `count` copies are done.
  std::vector<NeuronCopies::Ticket> all_done(NeuronCopies& copies, Direction direction,
                                             std::size_t count) {
    std::vector<NeuronCopies::Ticket> done;
    while (done.size() < count) {
      const auto& more =
          direction == Direction::kToHost ? copies.done_to_host() : copies.done_to_device();
      done.insert(done.end(), more.begin(), more.end());
    }
    return done;
  }

  PlayedNeuron neuron_;
  NeuronRuntime runtime_;
  NeuronPool pool_{runtime_, kCore, 1 << 20};
  std::vector<std::byte*> blocks_;
};
INSTANTIATE_TEST_SUITE_P(Releases, NeuronCopiesOf, testing::ValuesIn(kPlayedReleases));

TEST_P(NeuronCopiesOf, GoBothWaysInTheOrderOfEach) {
  NeuronCopies copies(runtime_, kCore);
  std::vector<Bytes> values, places;
  for (int i = 0; i < 3; ++i) {
    values.push_back(random_bytes(kBytes, static_cast<std::uint64_t>(i)));
    places.emplace_back(kBytes);
  }
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(copies.start(Direction::kToDevice, place(static_cast<int>(i)), values[i].data(),
                             kBytes, 10 + i));
  }
  EXPECT_FALSE(copies.idle());
  EXPECT_THAT(all_done(copies, Direction::kToDevice, 3), testing::ElementsAre(10U, 11U, 12U));
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(
        copies.start(Direction::kToHost, place(static_cast<int>(i)), places[i].data(), kBytes, i));
  }
  EXPECT_THAT(all_done(copies, Direction::kToHost, 3), testing::ElementsAre(0U, 1U, 2U));
  EXPECT_TRUE(copies.idle());
  EXPECT_EQ(places, values);
}

/// That a call succeeded means that the copy is on a queue.
TEST_P(NeuronCopiesOf, AreNotDoneWhenTheyAreStarted) {
  neuron_.knobs().late = 50;
  NeuronCopies copies(runtime_, kCore);
  Bytes value = random_bytes(kBytes, 1);
  int looks = 0;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(copies.start(Direction::kToDevice, place(0), value.data(), kBytes, 1));
    while (copies.done_to_device().empty()) ++looks;
  }
  EXPECT_GT(looks, 20);
  EXPECT_EQ(std::memcmp(inside(0), value.data(), kBytes), 0);
}

TEST_P(NeuronCopiesOf, WaitWhileTheQueueIsFull) {
  neuron_.knobs().queue_depth = 2;
  neuron_.knobs().late = 1;
  NeuronCopies copies(runtime_, kCore);
  Bytes value(kBytes);
  std::size_t started = 0;
  while (copies.start(Direction::kToDevice, place(0), value.data(), kBytes, started)) ++started;
  EXPECT_EQ(started, 2U);
  EXPECT_EQ(neuron_.counters().queue_full, 1);
  all_done(copies, Direction::kToDevice, started);
  EXPECT_TRUE(copies.start(Direction::kToDevice, place(0), value.data(), kBytes, 3));
}

/// How it went is told after its end, and no success before.
TEST_P(NeuronCopiesOf, SayWhatWentWrongLater) {
  NeuronCopies copies(runtime_, kCore);
  Bytes value(kBytes);
  neuron_.knobs().fail_result = 1;
  neuron_.knobs().fail_status = 1203;
  ASSERT_TRUE(copies.start(Direction::kToHost, place(0), value.data(), kBytes, 1));
  ASSERT_TRUE(copies.start(Direction::kToHost, place(0), value.data(), kBytes, 2));
  EXPECT_THAT(refusal<PeerLostError>([&] { all_done(copies, Direction::kToHost, 2); }),
              AllOf(HasSubstr("rank 2"), HasSubstr("Neuron core 6"),
                    HasSubstr("copying 5000 bytes to the host"), HasSubstr("DMA_ABORT (1203)")));
}

TEST_P(NeuronCopiesOf, SayWhatWasRefusedAtOnce) {
  NeuronCopies copies(runtime_, kCore);
  Bytes value(kBytes);
  neuron_.knobs().fail_call = neuron_.counters().calls;
  EXPECT_THAT(
      refusal<PeerLostError>([&] {
        static_cast<void>(copies.start(Direction::kToDevice, place(0), value.data(), kBytes, 1));
      }),
      AllOf(HasSubstr("from the host: nrta_tensor_write returned"), HasSubstr("NRT_FAILURE (1)")));
  EXPECT_TRUE(copies.idle());
}

/// The runtime says nothing of bytes outside of a tensor.
TEST_P(NeuronCopiesOf, AreCheckedBeforeTheyAreStarted) {
  NeuronCopies copies(runtime_, kCore);
  Bytes value(2 * kBytes);
  const auto calls = neuron_.counters().calls;
  EXPECT_THAT(refusal<InternalError>([&] {
                static_cast<void>(
                    copies.start(Direction::kToDevice, place(0), value.data(), 2 * kBytes, 1));
              }),
              HasSubstr("10000 bytes where a tensor has"));
  EXPECT_EQ(neuron_.counters().calls, calls);
}

/// Memory of both sides is free after that.
TEST_P(NeuronCopiesOf, AreWaitedForAtTheEnd) {
  neuron_.knobs().late = 30;
  Bytes value = random_bytes(kBytes, 2);
  {
    NeuronCopies copies(runtime_, kCore);
    ASSERT_TRUE(copies.start(Direction::kToDevice, place(0), value.data(), kBytes, 1));
  }
  EXPECT_EQ(std::memcmp(inside(0), value.data(), kBytes), 0);
  neuron_.expect_empty(1);
}

}  // namespace neuron_copies_test
}  // namespace smp::d2d
