// What a channel promises about tensors, over any wires: those that arrive have a storage of their
// own and no history; those that are sent are kept until they have left, and those of the server
// may change meanwhile.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include <memory>
#include <vector>

#include "base/torch_features.h"
#include "d2d/channel/channel_exchange.h"

namespace smp::d2d {

template <class ClusterType>
class ChannelTensorsContract : public ChannelExchange<ClusterType> {};
TYPED_TEST_SUITE_P(ChannelTensorsContract);

TYPED_TEST_P(ChannelTensorsContract, GivesNormalTensorsUnderInferenceMode) {
  c10::InferenceMode inference;
  this->send_to_all([](int, int, int) {
    return Frame{"", {at::ones({4}), at::ones({100, 100}), at::ones({3, 4}).t()}};
  });
  this->cluster_.run_until_arrived(this->cluster_.size() - 1);
  c10::InferenceMode normal(false);
  for (auto& player : this->cluster_.players()) {
    for (at::Tensor& tensor : player->arrived.front().frame.tensors) {
      EXPECT_FALSE(tensor.is_inference());
      tensor.requires_grad_();
      EXPECT_TRUE((tensor * 2).requires_grad());
    }
  }
}

TYPED_TEST_P(ChannelTensorsContract, ArrivesWithoutHistoryAndLeavesTheSendersTensorAlone) {
  const at::Tensor leaf = at::ones({50, 50}).requires_grad_();
  const at::Tensor result = leaf * 2;
  const auto version = result._version();
  this->expect_carries({leaf, result, result.t(), leaf.slice(0, 0, 2)});
  EXPECT_EQ(result._version(), version);
  EXPECT_NE(result.grad_fn(), nullptr);
}

TYPED_TEST_P(ChannelTensorsContract, GivesEveryTensorItsOwnStorage) {
  const at::Tensor sent = at::zeros({8});
  this->send_to_all([&](int, int, int) { return Frame{"", {sent, sent, sent.slice(0, 0, 4)}}; });
  this->cluster_.run_until_arrived(this->cluster_.size() - 1);
  for (auto& player : this->cluster_.players()) {
    std::vector<at::Tensor>& tensors = player->arrived.front().frame.tensors;
    tensors[0].fill_(1);
    EXPECT_EQ(tensors[1].sum().template item<float>(), 0);
    EXPECT_EQ(tensors[2].sum().template item<float>(), 0);
  }
  EXPECT_EQ(sent.sum().template item<float>(), 0);
}

TYPED_TEST_P(ChannelTensorsContract, LetsGoOfTensorsThatHaveLeft) {
  const at::Tensor small = at::ones({4});
  const at::Tensor large = at::ones({1 << 18});
  this->expect_carries({small, large});
  EXPECT_EQ(small.storage().use_count(), 1u);
  EXPECT_EQ(large.storage().use_count(), 1u);
}

TYPED_TEST_P(ChannelTensorsContract, KeepsTensorsAliveWithoutTheirHistory) {
  const at::Tensor saved = at::full({1 << 16}, 2);  // by the multiplication, for its backward
  this->send_to_all([&](int, int, int) {
    return Frame{"", {at::ones({1 << 16}).requires_grad_() * saved}};
  });
  EXPECT_EQ(saved.storage().use_count(), 1u);
  this->cluster_.run_until_arrived(this->cluster_.size() - 1);
  for (auto& player : this->cluster_.players()) {
    EXPECT_EQ(player->arrived.front().frame.tensors[0].sum().template item<float>(), 2 << 16);
  }
}

TYPED_TEST_P(ChannelTensorsContract, NeedsSmallTensorsOnlyDuringTheCall) {
  at::Tensor small = at::zeros({4});
  this->send_to_all([&](int, int, int) { return Frame{"", {small}}; });
  EXPECT_EQ(small.storage().use_count(), 1u);
  small.fill_(1);
  this->cluster_.run_until_arrived(this->cluster_.size() - 1);
  for (auto& player : this->cluster_.players()) {
    EXPECT_EQ(player->arrived.front().frame.tensors[0].sum().template item<float>(), 0);
    EXPECT_THAT(player->failures, testing::IsEmpty());
  }
}

TYPED_TEST_P(ChannelTensorsContract, AllowsChangesOfWhatTheServerSends) {
  if (!SMP_STORAGES_CAN_BE_WATCHED) GTEST_SKIP() << "LibTorch cannot share memory until a write";
  const at::Tensor whole = at::zeros({1 << 20}), large = at::zeros({1 << 20});
  const at::Tensor part = large.narrow(0, 1 << 10, 1 << 16);
  const auto* const memory = large.const_data_ptr();
  this->send_to_all([&](int, int, int) { return Frame{"changed", {whole, part}}; });
  whole.add_(1);
  part.add_(1);
  EXPECT_EQ(large.const_data_ptr(), memory) << "all of it was copied for a part";
  this->cluster_.run_until_arrived(this->cluster_.size() - 1);
  for (auto& player : this->cluster_.players()) {
    EXPECT_THAT(player->failures, testing::IsEmpty());
    for (const auto& mail : player->arrived) {
      EXPECT_EQ(mail.frame.tensors[0].sum().template item<float>(), 0);
      EXPECT_EQ(mail.frame.tensors[1].sum().template item<float>(), 0);
    }
  }
}

TYPED_TEST_P(ChannelTensorsContract, ReportsATensorOfACollectiveThatWasChangedInFlight) {
  at::Tensor tensor = at::zeros({1 << 20});
  for (auto& player : this->cluster_.players()) {
    if (player->rank() != 0) continue;
    player->send(1, Frame{"changed", {at::ones({1}), tensor}}, Port::kCollectives);
    tensor.add_(1);
  }
  this->cluster_.run_until(
      [](Player& player) { return player.rank() != 1 || !player.collectives.empty(); });
  for (auto& player : this->cluster_.players()) {
    if (player->rank() != 0) {
      EXPECT_THAT(player->failures, testing::IsEmpty());
      continue;
    }
    EXPECT_THAT(player->failures,
                testing::ElementsAre(testing::AllOf(
                    testing::HasSubstr("tensor 1"), testing::HasSubstr("[1048576]"),
                    testing::HasSubstr("rank 1"), testing::HasSubstr("changed in place"))));
  }
}

TYPED_TEST_P(ChannelTensorsContract, AllowsChangesOfWhatItCopied) {
  at::Tensor tensor = at::zeros({1024, 1024});
  this->send_to_all([&](int, int, int) { return Frame{"strided", {tensor.t()}}; });
  tensor.add_(1);
  this->cluster_.run_until_arrived(this->cluster_.size() - 1);
  for (auto& player : this->cluster_.players()) {
    EXPECT_THAT(player->failures, testing::IsEmpty());
    EXPECT_EQ(player->arrived.front().frame.tensors[0].sum().template item<float>(), 0);
  }
}

TYPED_TEST_P(ChannelTensorsContract, AllowsChangesOnceTheAnswerIsThere) {
  this->expect_no_reports(5000);
}

TYPED_TEST_P(ChannelTensorsContract, AllowsChangesOnceASmallAnswerIsThere) {
  this->expect_no_reports(1);
}

// More than a wire looks at in one go: the answer must not be seen before what it answers has left.
TYPED_TEST_P(ChannelTensorsContract, AllowsChangesOnceAnAnswerOfManyTensorsIsThere) {
  this->expect_no_reports(5000, 150);
}

TYPED_TEST_P(ChannelTensorsContract, TellsWhenTensorsHaveLeft) {
  std::vector<std::shared_ptr<Departure>> departures;
  for (auto& player : this->cluster_.players()) {
    const GlobalRank peer((player->rank() + 1) % this->cluster_.size());
    departures.push_back(std::make_shared<Departure>());
    const std::vector<at::Tensor> tensors{at::ones({1 << 18}), at::ones({2}), at::ones({1 << 18})};
    player->channel->send(peer, Port::kServer, {}, {}, tensors, departures.back());
    EXPECT_EQ(departures.back()->in_flight, 2u);
  }
  this->cluster_.run_until_arrived(1);
  for (const auto& departure : departures) EXPECT_EQ(departure->in_flight, 0u);
}

REGISTER_TYPED_TEST_SUITE_P(ChannelTensorsContract, GivesNormalTensorsUnderInferenceMode,
                            ArrivesWithoutHistoryAndLeavesTheSendersTensorAlone,
                            GivesEveryTensorItsOwnStorage, LetsGoOfTensorsThatHaveLeft,
                            KeepsTensorsAliveWithoutTheirHistory,
                            NeedsSmallTensorsOnlyDuringTheCall, AllowsChangesOfWhatTheServerSends,
                            ReportsATensorOfACollectiveThatWasChangedInFlight,
                            AllowsChangesOfWhatItCopied, AllowsChangesOnceTheAnswerIsThere,
                            AllowsChangesOnceASmallAnswerIsThere,
                            AllowsChangesOnceAnAnswerOfManyTensorsIsThere,
                            TellsWhenTensorsHaveLeft);

}  // namespace smp::d2d
