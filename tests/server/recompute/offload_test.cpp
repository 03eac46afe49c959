// What leaves the device and comes back: when, in which order, and that it is what it was.
#include "server/recompute/offload.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <memory>
#include <vector>

#include "server/recompute/delayed_streams.h"
#include "smp/nn/linear.h"
#include "smp/recompute/activation_checkpointing.h"

namespace smp::server {
namespace offload_test {

using at::Tensor;

constexpr std::int64_t kBytes = 100;

/// Three calls of a microbatch, of which each keeps a tensor of its number.
class OffloadTest : public testing::Test {
 protected:
  void start(int horizon, std::int64_t pool_bytes = 1'000'000) {
    auto streams = std::make_unique<DelayedStreams>();
    streams_ = streams.get();
    offload_ = std::make_shared<Offload>(
        Offload::Options{.horizon = horizon, .pool_bytes = pool_bytes}, std::move(streams));
  }
  std::unique_ptr<Offload::Parcel> send(int microbatch, int number) {
    auto tensor = at::full({kBytes}, number, at::kByte);
    auto parcel = Offload::Parcel::send(offload_, offload_->next_place(0, microbatch), {tensor});
    return parcel;
  }
  static int number_in(Offload::Parcel& parcel) {
    const auto tensors = parcel.take();
    EXPECT_EQ(tensors.size(), 1u);
    EXPECT_TRUE(tensors[0].eq(tensors[0][0]).all().item<bool>());
    return tensors[0][0].item<int>();
  }

  std::shared_ptr<Offload> offload_;
  DelayedStreams* streams_ = nullptr;
};

TEST_F(OffloadTest, BringsBackWhatLeft) {
  start(/*horizon=*/0);
  std::vector<std::unique_ptr<Offload::Parcel>> sent;
  for (int i = 0; i < 4; ++i) sent.push_back(send(0, i));
  for (int i = 3; i >= 0; --i) EXPECT_EQ(number_in(*sent[static_cast<std::size_t>(i)]), i);
  EXPECT_EQ(offload_->counters().sent, 4);
  EXPECT_EQ(offload_->counters().late, 4);
  EXPECT_EQ(offload_->counters().ahead, 0);
}

/// The last call of the first microbatch comes first, and the second microbatch after the first.
TEST_F(OffloadTest, FetchesTheNextBackwardsAhead) {
  start(/*horizon=*/2);
  std::vector<std::unique_ptr<Offload::Parcel>> sent;
  for (const int microbatch : {1, 0}) {
    for (int i = 0; i < 2; ++i) sent.push_back(send(microbatch, 10 * microbatch + i));
  }
  const auto ahead_after = [&](std::size_t taken, int number) {
    EXPECT_EQ(number_in(*sent[taken]), number);
    return offload_->counters().ahead;
  };
  EXPECT_EQ(ahead_after(3, 1), 2) << "of microbatch 0 the first call, and of 1 the last";
  EXPECT_EQ(offload_->counters().late, 1);
  EXPECT_EQ(ahead_after(2, 0), 3);
  EXPECT_EQ(ahead_after(1, 11), 3) << "all are there";
  EXPECT_EQ(ahead_after(0, 10), 3);
  EXPECT_EQ(offload_->counters().late, 1);
}

TEST_F(OffloadTest, TakesAnotherOrderTooAndForgetsWhatIsDropped) {
  start(/*horizon=*/1);
  auto first = send(0, 1), second = send(0, 2), third = send(1, 3);
  EXPECT_EQ(number_in(*first), 1);
  EXPECT_EQ(offload_->counters().ahead, 1) << "the last of microbatch 1";
  second.reset();
  EXPECT_EQ(number_in(*third), 3);
  EXPECT_EQ(offload_->counters().late, 1);
}

TEST_F(OffloadTest, WhatIsDroppedIsNotFetched) {
  start(/*horizon=*/1);
  auto own = send(0, 1), dropped = send(1, 2), next = send(2, 3);
  dropped.reset();
  EXPECT_EQ(number_in(*own), 1);
  EXPECT_EQ(number_in(*next), 3);
  EXPECT_EQ(offload_->counters().late, 1) << "the next one came ahead";
}

TEST_F(OffloadTest, KeepsRanksApart) {
  start(/*horizon=*/4);
  const auto parcel = [&](int rank) {
    return Offload::Parcel::send(offload_, offload_->next_place(rank, 0),
                                 {at::full({kBytes}, rank, at::kByte)});
  };
  const auto other = parcel(1), own = parcel(0);
  EXPECT_EQ(number_in(*own), 0);
  EXPECT_EQ(offload_->counters().ahead, 0);
}

TEST_F(OffloadTest, WhatFindsNoRoomOnTheHostStays) {
  start(/*horizon=*/0, 2 * kBytes);
  auto first = send(0, 1), second = send(0, 2);
  testing::internal::CaptureStderr();
  EXPECT_EQ(send(0, 3), nullptr);
  EXPECT_EQ(send(0, 4), nullptr);
  const auto said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("200 of at most 200 bytes"), std::string::npos) << said;
  EXPECT_EQ(said.find("at most"), said.rfind("at most")) << "once";
  EXPECT_EQ(offload_->counters().stayed, 2);
  EXPECT_EQ(number_in(*second), 2);
  second.reset();
  EXPECT_NE(send(0, 5), nullptr) << "there is room again";
  EXPECT_EQ(offload_->pool_bytes(), 2 * kBytes);
}

/// Blocks that are too small for it make no room for what is larger than all of them.
TEST_F(OffloadTest, WhatIsTooLargeTakesNoBlocksAway) {
  start(/*horizon=*/0, 3 * kBytes);
  auto first = send(0, 1), second = send(0, 2);
  EXPECT_EQ(number_in(*second), 2);
  second.reset();
  const auto place = offload_->next_place(0, 0);
  EXPECT_EQ(Offload::Parcel::send(offload_, place, {at::zeros({4 * kBytes}, at::kByte)}), nullptr);
  EXPECT_EQ(offload_->pool_bytes(), 2 * kBytes) << "the free block is there for others";
  EXPECT_NE(send(0, 3), nullptr);
  EXPECT_EQ(offload_->pool_bytes(), 2 * kBytes);
  EXPECT_EQ(number_in(*first), 1);
}

/// A block that is free serves what has half its size, and nothing that is much smaller.
TEST_F(OffloadTest, SmallTensorsTakeNoLargeBlocks) {
  for (const std::int64_t times : {2, 3}) {
    start(/*horizon=*/0);
    const auto place = offload_->next_place(0, 0);
    auto large = Offload::Parcel::send(offload_, place, {at::zeros({times * kBytes}, at::kByte)});
    (void)large->take();  // its copy is over
    large.reset();
    const auto before = offload_->pool_bytes();
    const auto small = send(0, 1);
    EXPECT_EQ(offload_->pool_bytes(), before + (times == 2 ? 0 : kBytes)) << times;
    EXPECT_EQ(number_in(*small), 1);
  }
}

/// Of several tensors, all stay if the host has no memory for the last.
TEST_F(OffloadTest, StaysWhereTheHostGivesNoMemory) {
  start(/*horizon=*/0);
  streams_->host_blocks = 1;
  const auto tensor = at::full({kBytes}, 1, at::kByte);
  const auto place = offload_->next_place(0, 0);
  EXPECT_EQ(Offload::Parcel::send(offload_, place, {tensor, tensor}), nullptr);
  EXPECT_EQ(offload_->counters().stayed, 1);
  EXPECT_EQ(offload_->pool_bytes(), kBytes);
  auto parcel = send(0, 2);
  ASSERT_NE(parcel, nullptr) << "the block that there is serves the next one";
  EXPECT_EQ(number_in(*parcel), 2);
}

/// A block goes to the next one only when the copy that reads it is over.
TEST_F(OffloadTest, NobodyWritesWhatIsStillRead) {
  start(/*horizon=*/1);
  auto first = send(0, 1), second = send(0, 2);
  EXPECT_EQ(number_in(*second), 2);  // the first is on its way
  second.reset();
  const auto blocks = offload_->pool_bytes();
  first.reset();  // dropped on its way: its block is still read
  auto third = send(0, 3);
  EXPECT_EQ(offload_->pool_bytes(), blocks);
  auto fourth = send(0, 4);
  EXPECT_EQ(offload_->pool_bytes(), blocks + kBytes);
  EXPECT_EQ(number_in(*fourth), 4);
  EXPECT_EQ(number_in(*third), 3);
}

TEST_F(OffloadTest, WhatFindsNoRoomOnTheDeviceComesWhenItIsNeeded) {
  start(/*horizon=*/2);
  auto first = send(0, 1), second = send(0, 2);
  streams_->full = true;
  EXPECT_THROW(second->take(), c10::OutOfMemoryError);
  streams_->full = false;
  auto third = send(0, 3);
  EXPECT_EQ(number_in(*third), 3);
  EXPECT_EQ(offload_->counters().ahead, 1);
  auto fourth = send(0, 4), fifth = send(0, 5);
  EXPECT_EQ(number_in(*fifth), 5);
  EXPECT_EQ(number_in(*first), 1);
}

TEST_F(OffloadTest, IsPutOffWhereTheDeviceIsFull) {
  start(/*horizon=*/2);
  auto first = send(0, 1), second = send(0, 2), third = send(0, 3);
  EXPECT_EQ(number_in(*third), 3);  // the two others come
  auto later = send(1, 4), last = send(1, 5);
  streams_->full = true;
  EXPECT_EQ(number_in(*second), 2) << "it was there";
  EXPECT_EQ(offload_->counters().put_off, 1);
  streams_->full = false;
  EXPECT_EQ(number_in(*first), 1);
  EXPECT_EQ(number_in(*last), 5);
  EXPECT_EQ(number_in(*later), 4);
}

/// Another order than is expected, on a device with room for two.
TEST_F(OffloadTest, WhatWasFetchedAheadMakesRoomForWhatIsNeeded) {
  start(/*horizon=*/2);
  auto far = send(5, 9), first = send(0, 1), second = send(0, 2), third = send(0, 3);
  streams_->most_blocks = 3;
  EXPECT_EQ(number_in(*third), 3);  // the two others come
  third.reset();
  streams_->most_blocks = 2;
  EXPECT_EQ(number_in(*far), 9) << "in the place of the first call's";
  EXPECT_EQ(offload_->counters().given_back, 1);
  EXPECT_EQ(offload_->counters().late, 2);
  far.reset();
  EXPECT_EQ(number_in(*second), 2) << "it was there";
  EXPECT_EQ(number_in(*first), 1) << "it came once more";
  EXPECT_EQ(offload_->counters().late, 2);
}

// ---- calls
// ---------------------------------------------------------------------------------------

/// Gradients of the input and of all weights of blocks that are computed again.
std::vector<Tensor> gradients(const std::shared_ptr<Offload>& offload) {
  Offload::set_current(offload);
  torch::manual_seed(1);
  std::vector<nn::Linear> blocks;
  for (int i = 0; i < 4; ++i) blocks.emplace_back(8, 8);
  const auto x = torch::randn({6, 8}).requires_grad_();
  const auto run = [&](int block, const Tensor& value, const Tensor& part) {
    return checkpoint(
        [linear = blocks[static_cast<std::size_t>(block)]](const Tensor& all,
                                                           const Tensor& some) mutable {
          const auto y = torch::sigmoid(linear(all)) * some;
          return y.tanh() * all;
        },
        value, part);
  };
  auto y = x * 1;
  for (int i = 0; i < 4; ++i) {
    const auto before = y;
    y = run(i, before, before.narrow(0, 1, 1));  // a view of its other argument
    y = y + 1;
  }
  y.sum().backward();
  std::vector<Tensor> all{x.grad()};
  for (auto& block : blocks) {
    for (const auto& parameter : block->parameters()) all.push_back(parameter.grad());
  }
  Offload::set_current(nullptr);
  return all;
}

TEST(OffloadedCalls, HaveTheSameBits) {
  const auto reference = gradients(nullptr);
  for (const int horizon : {0, 1, 2, 100}) {
    const auto offload =
        std::make_shared<Offload>(Offload::Options{.horizon = horizon, .pool_bytes = 1'000'000},
                                  std::make_unique<DelayedStreams>());
    const auto own = gradients(offload);
    ASSERT_EQ(own.size(), reference.size());
    for (std::size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(own[i].equal(reference[i])) << i;
    EXPECT_EQ(offload->counters().sent, 4);
    EXPECT_EQ(offload->counters().ahead, horizon == 0 ? 0 : 3);
    EXPECT_EQ(offload->counters().late, horizon == 0 ? 4 : 1);
  }
}

/// What a call wrote in place afterwards is not what it was called with.
TEST(OffloadedCalls, LeaveAsTheyWere) {
  const auto value = [](const std::shared_ptr<Offload>& offload) {
    Offload::set_current(offload);
    auto x = torch::arange(8, torch::kFloat).requires_grad_();
    auto y = x * 2;
    auto z = checkpoint([](const Tensor& t) { return t.sin() * t; }, y.detach().requires_grad_());
    const auto w = x * 3;
    auto v = checkpoint([](Tensor t) { return t.mul_(2).sin() * t; }, w * 1);
    v.sum().backward();
    Offload::set_current(nullptr);
    return x.grad();
  };
  const auto offload = std::make_shared<Offload>(
      Offload::Options{.horizon = 4, .pool_bytes = 1'000'000}, std::make_unique<DelayedStreams>());
  EXPECT_TRUE(value(offload).equal(value(nullptr)));
  EXPECT_EQ(offload->counters().sent, 2);
}

}  // namespace offload_test
}  // namespace smp::server
