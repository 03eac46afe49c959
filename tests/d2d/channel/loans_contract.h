// What ranks that lend each other memory promise beside the contract of channels: nobody sees what
// another writes, and memory comes back.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include <memory>
#include <random>
#include <vector>

#include "base/torch_features.h"
#include "d2d/channel/channel_exchange.h"
#include "d2d/lend/heap_allocator.h"
#include "d2d/lend/loans.h"

namespace smp::d2d {

inline constexpr std::int64_t kLentFloats = 50'000;

template <class ClusterType>
class LoansContract : public ChannelExchange<ClusterType> {
 protected:
  static Loans& loans(const Player& player) {
    const auto& routes = player.channel->routes();
    return *routes.loans(GlobalRank(player.rank() == 0 ? 1 : 0));
  }
  void run_until_all_are_back() {
    this->cluster_.run_until([](Player& player) { return loans(player).lent() == 0; });
  }
  int peers() { return this->cluster_.size() - 1; }
};
TYPED_TEST_SUITE_P(LoansContract);

TYPED_TEST_P(LoansContract, CarriesTensorsInOneMessageWithoutADeparture) {
  for (auto& player : this->cluster_.players()) {
    const GlobalRank peer((player->rank() + 1) % this->cluster_.size());
    const auto departure = std::make_shared<Departure>();
    const std::vector<at::Tensor> tensors{at::full({kLentFloats}, player->rank(), at::kFloat)};
    player->channel->send(peer, Port::kServer, {}, {}, tensors, departure);
    EXPECT_EQ(departure->in_flight, 0u);
    EXPECT_EQ(this->loans(*player).lent(), 1u);
  }
  this->cluster_.run_until_arrived(1);
  for (auto& player : this->cluster_.players()) {
    const auto& mail = player->arrived.front();
    const auto& tensor = mail.frame.tensors[0];
    EXPECT_TRUE(tensor.equal(at::full({kLentFloats}, mail.source, at::kFloat)));
#if SMP_STORAGES_CAN_BE_WATCHED
    EXPECT_TRUE(tensor.storage().unsafeGetStorageImpl()->has_materializer());
#endif
  }
}

TYPED_TEST_P(LoansContract, NobodySeesWhatAnotherWrites) {
  std::vector<at::Tensor> sent;
  for (auto& player : this->cluster_.players()) {
    sent.push_back(at::full({kLentFloats}, 100 + player->rank(), at::kFloat));
    for (int peer = 0; peer < this->cluster_.size(); ++peer) {
      if (peer != player->rank()) player->send(peer, Frame{"", {sent.back(), sent.back()}});
    }
    sent.back().view({-1, 10}).select(1, 3).add_(1);
  }
  this->cluster_.run_until_arrived(this->peers());
  for (auto& player : this->cluster_.players()) {
    EXPECT_THAT(player->failures, testing::IsEmpty());
    for (auto& mail : player->arrived) {
      auto& tensors = mail.frame.tensors;
      EXPECT_TRUE(tensors[0].equal(at::full({kLentFloats}, 100 + mail.source, at::kFloat)));
      tensors[0].fill_(player->rank());
      EXPECT_TRUE(tensors[1].equal(at::full({kLentFloats}, 100 + mail.source, at::kFloat)));
    }
  }
  for (std::size_t i = 0; i < sent.size(); ++i) {
    const auto rank = this->cluster_.players()[i]->rank();
    EXPECT_EQ(sent[i][0].item<float>(), 100 + rank);
    EXPECT_EQ(sent[i][3].item<float>(), 101 + rank);
    EXPECT_EQ(sent[i].sum(at::kDouble).item<double>(),
              kLentFloats * (100.0 + rank) + kLentFloats / 10);
  }
}

TYPED_TEST_P(LoansContract, MemoryComesBackWhenTheLastTensorEnds) {
  const auto sent = at::ones({kLentFloats});
  this->send_to_all([&](int, int, int) { return Frame{"", {sent}}; });
  this->cluster_.run_until_arrived(this->peers());
  for (auto& player : this->cluster_.players()) {
    for (auto& mail : player->arrived) {
      auto view = mail.frame.tensors[0].slice(0, 5, 10);
      mail.frame.tensors.clear();
      EXPECT_EQ(view.sum().template item<float>(), 5);
    }
    player->arrived.clear();
  }
  this->run_until_all_are_back();
  const auto* const place = sent.const_data_ptr();
  auto writable = sent;
  writable.add_(1);
  EXPECT_EQ(writable.const_data_ptr(), place) << "nobody else has it: it need not move";
}

TYPED_TEST_P(LoansContract, MemoryComesBackFromWhoWrites) {
  this->send_to_all([&](int, int, int) { return Frame{"", {at::ones({kLentFloats})}}; });
  this->cluster_.run_until_arrived(this->peers());
  for (auto& player : this->cluster_.players()) {
    for (auto& mail : player->arrived) mail.frame.tensors[0].add_(1);
  }
  this->run_until_all_are_back();
}

TYPED_TEST_P(LoansContract, SendsWhatCannotBeLent) {
  static std::vector<float> elsewhere(kLentFloats, 3);
  const auto large = at::full({10, kLentFloats}, 4, at::kFloat);
  const std::vector<at::Tensor> tensors{at::full({5'000}, 2, at::kFloat),
                                        at::from_blob(elsewhere.data(), {kLentFloats}), large[7]};
  this->send_to_all([&](int, int, int) { return Frame{"", tensors}; });
  for (auto& player : this->cluster_.players()) EXPECT_EQ(this->loans(*player).lent(), 0u);
  this->cluster_.run_until_arrived(this->peers());
  for (auto& player : this->cluster_.players()) {
    for (auto& mail : player->arrived) {
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_TRUE(mail.frame.tensors[i].equal(tensors[i])) << i;
      }
    }
  }
}

/// Which is not lent: too small, or a small part of something large. That is not copied for it.
TYPED_TEST_P(LoansContract, WhatIsSentMayBeWrittenToAsWell) {
  const auto small = at::full({8000}, 2), large = at::full({8 * kLentFloats}, 3);
  const auto* const memory = large.const_data_ptr();
  const auto part = large.narrow(0, kLentFloats, kLentFloats);
  this->send_to_all([&](int, int, int) { return Frame{"", {small, part}}; });
  small.add_(1);
  part.add_(1);
  EXPECT_EQ(large.const_data_ptr(), memory);
  this->cluster_.run_until_arrived(this->peers());
  for (auto& player : this->cluster_.players()) {
    EXPECT_THAT(player->failures, testing::IsEmpty());
    for (const auto& mail : player->arrived) {
      EXPECT_TRUE(mail.frame.tensors[0].eq(2).all().template item<bool>());
      EXPECT_TRUE(mail.frame.tensors[1].eq(3).all().template item<bool>());
    }
  }
}

TYPED_TEST_P(LoansContract, LendsPartsAndWhatIsNotContiguous) {
  const auto base = at::arange(2 * kLentFloats).view({2, kLentFloats});
  const std::vector<at::Tensor> tensors{base[1], base.t(), base.to(at::kBFloat16)};
  this->send_to_all([&](int, int, int) { return Frame{"", tensors}; });
  for (auto& player : this->cluster_.players()) {
    EXPECT_EQ(this->loans(*player).lent(), 3u * static_cast<std::size_t>(this->peers()));
  }
  this->cluster_.run_until_arrived(this->peers());
  for (auto& player : this->cluster_.players()) {
    for (auto& mail : player->arrived) {
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_TRUE(mail.frame.tensors[i].equal(tensors[i])) << i;
        EXPECT_TRUE(mail.frame.tensors[i].is_contiguous());
      }
    }
  }
}

TYPED_TEST_P(LoansContract, GivesNormalTensorsUnderInferenceMode) {
  c10::InferenceMode inference;
  this->send_to_all([](int, int, int) { return Frame{"", {at::ones({kLentFloats})}}; });
  this->cluster_.run_until_arrived(this->peers());
  c10::InferenceMode normal(false);
  for (auto& player : this->cluster_.players()) {
    auto& tensor = player->arrived.front().frame.tensors[0];
    EXPECT_FALSE(tensor.is_inference());
    tensor.requires_grad_();
    EXPECT_TRUE((tensor * 2).requires_grad());
  }
}

TYPED_TEST_P(LoansContract, WhatIsNotTheServersIsNotLent) {
  for (auto& player : this->cluster_.players()) {
    const int peer = (player->rank() + 1) % this->cluster_.size();
    player->send(peer, Frame{"", {at::ones({kLentFloats})}}, Port::kCollectives);
    EXPECT_EQ(this->loans(*player).lent(), 0u);
  }
  this->cluster_.run_until([](Player& player) { return !player.collectives.empty(); });
}

/// More than there are slots.
TYPED_TEST_P(LoansContract, SendsWhatIsTooMuchToLend) {
  constexpr int kTensors = 9'000;
  const auto sent = at::full({20'000}, 6, at::kFloat);
  for (auto& player : this->cluster_.players()) {
    const int peer = (player->rank() + 1) % this->cluster_.size();
    player->send(peer, Frame{"", std::vector<at::Tensor>(kTensors, sent)});
    EXPECT_GT(this->loans(*player).lent(), 8'000u);
    EXPECT_LT(this->loans(*player).lent(), 9'000u);
  }
  this->cluster_.run_until_arrived(1);
  for (auto& player : this->cluster_.players()) {
    for (const auto& tensor : player->arrived.front().frame.tensors) {
      ASSERT_EQ(tensor.template const_data_ptr<float>()[19'999], 6);
    }
    player->arrived.clear();
  }
  this->run_until_all_are_back();
}

/// Tensors of random sizes are sent, written to and dropped on both sides, again and again.
TYPED_TEST_P(LoansContract, MemoryIsUsedAgainAndAgainWithoutAMixture) {
  constexpr int kRounds = 300;
  std::mt19937 random(11);
  std::vector<std::pair<at::Tensor, double>> held;  // and what all its elements are
  double value = 0;
  for (int round = 1; round <= kRounds; ++round) {
    const auto size = 17'000 + static_cast<std::int64_t>(random() % 100'000);
    std::vector<at::Tensor> sent;
    this->send_to_all([&](int, int, int) {
      sent.push_back(at::full({size}, value, at::kFloat));
      return Frame{"", {sent.back(), sent.back()}};
    });
    if (random() % 2 == 0) {
      for (auto& tensor : sent) tensor.fill_(-1);
    }
    // Not any so many: a quick rank may be a round ahead.
    this->cluster_.run_until(
        [&](Player& player) { return player.sources_with(1) == this->peers(); });
    for (auto& player : this->cluster_.players()) {
      for (int peer = 0; peer < this->cluster_.size(); ++peer) {
        if (peer == player->rank()) continue;
        for (auto& frame : player->take(peer, 1)) {
          EXPECT_EQ(frame.tensors[0].max().template item<float>(), static_cast<float>(value));
          held.emplace_back(frame.tensors[0], value);
          frame.tensors[1].mul_(-1);
          held.emplace_back(frame.tensors[1], -value);
        }
      }
    }
    std::shuffle(held.begin(), held.end(), random);
    if (held.size() > 60) held.resize(30);
    value += 1;
  }
  for (const auto& [tensor, expected] : held) {
    EXPECT_EQ(tensor.max().template item<float>(), static_cast<float>(expected));
    EXPECT_EQ(tensor.min().template item<float>(), static_cast<float>(expected));
  }
  held.clear();
  this->run_until_all_are_back();
}

REGISTER_TYPED_TEST_SUITE_P(LoansContract, CarriesTensorsInOneMessageWithoutADeparture,
                            NobodySeesWhatAnotherWrites, MemoryComesBackWhenTheLastTensorEnds,
                            MemoryComesBackFromWhoWrites, SendsWhatCannotBeLent,
                            WhatIsSentMayBeWrittenToAsWell, LendsPartsAndWhatIsNotContiguous,
                            GivesNormalTensorsUnderInferenceMode, WhatIsNotTheServersIsNotLent,
                            SendsWhatIsTooMuchToLend, MemoryIsUsedAgainAndAgainWithoutAMixture);

}  // namespace smp::d2d
