// What a channel promises over any wires: two suites, run on each of them and on mixtures. Here
// what arrives, and in which order; in channel_tensors_contract.h what becomes of the tensors.
#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "d2d/channel/channel_exchange.h"
#include "d2d/channel/channel_tensors_contract.h"
#include "smp/error.h"

namespace smp::d2d {

template <class ClusterType>
class ChannelContract : public ChannelExchange<ClusterType> {};
TYPED_TEST_SUITE_P(ChannelContract);

// ---- what is carried ---------------------------------------------------------------------------

TYPED_TEST_P(ChannelContract, CarriesEveryDtypeBitForBit) {
  std::vector<at::Tensor> tensors;
  for (auto dtype : {at::kBool,
                     at::kByte,
                     at::kChar,
                     at::kShort,
                     at::kInt,
                     at::kLong,
                     at::kUInt16,
                     at::kUInt32,
                     at::kUInt64,
                     at::kHalf,
                     at::kBFloat16,
                     at::kFloat,
                     at::kDouble,
                     at::kComplexHalf,
                     at::kComplexFloat,
                     at::kComplexDouble,
                     at::kFloat8_e5m2,
                     at::kFloat8_e4m3fn,
                     at::kFloat8_e5m2fnuz,
                     at::kFloat8_e4m3fnuz}) {
    tensors.push_back(random_bits({3, 5}, dtype, 7));
    tensors.push_back(random_bits({100, 83}, dtype, 8));
  }
  this->expect_carries(tensors);
}

TYPED_TEST_P(ChannelContract, CarriesUndefinedScalarAndEmptyTensors) {
  this->expect_carries({at::Tensor(), random_bits({}, at::kDouble, 1), at::empty({0}),
                        at::empty({4, 0, 3}, at::kLong), at::Tensor(),
                        random_bits({1, 1, 1, 1, 1, 1, 1, 1, 1}, at::kFloat, 2)});
}

TYPED_TEST_P(ChannelContract, MakesStridedTensorsContiguous) {
  const at::Tensor small = random_bits({6, 8}, at::kInt, 3);
  const at::Tensor large = random_bits({60, 80, 3}, at::kInt, 4);
  this->expect_carries({small.t(), small.slice(1, 0, 8, 2), small.select(1, 3),
                        small.select(0, 0).expand({5, 8}), large.permute({2, 0, 1}),
                        large.slice(0, 10, 50), at::ones({1}).expand({100, 100})});
}

TYPED_TEST_P(ChannelContract, CarriesOutLazyConjugationAndNegation) {
  const at::Tensor numbers = at::arange(20).to(at::kComplexFloat) * c10::complex<float>(1, 2);
  this->expect_carries({numbers.conj(), at::imag(numbers.conj()),
                        at::_efficientzerotensor({3, 4}, at::TensorOptions(at::kFloat))});
}

TYPED_TEST_P(ChannelContract, CarriesSizesAroundTheInlineLimit) {
  std::vector<at::Tensor> tensors;
  const auto limit = static_cast<std::int64_t>(kInlineBytes);
  for (std::int64_t bytes : {std::int64_t{1}, std::int64_t{15}, std::int64_t{16}, std::int64_t{17},
                             limit - 1, limit, limit + 1, 2 * limit}) {
    tensors.push_back(random_bits({bytes}, at::kByte, bytes));
  }
  this->expect_carries(tensors);
}

TYPED_TEST_P(ChannelContract, MovesLargeTensorsBothWaysAtOnce) {
  this->expect_exchange([](int source, int destination, int) {
    return Frame{"large", {random_bits({1 << 20}, at::kDouble, source * 8 + destination)}};
  });
}

TYPED_TEST_P(ChannelContract, KeepsSmallFramesInOrder) {
  this->expect_exchange(
      [](int source, int, int index) {
        return Frame{std::to_string(index), {at::full({index % 50}, source)}};
      },
      300);
}

TYPED_TEST_P(ChannelContract, KeepsHeadersInOrderWhateverTheirSize) {
  this->expect_exchange(
      [](int, int, int index) {
        const std::size_t size = index % 5 == 0 ? 300'000 : index % 5 == 1 ? 5'000 : 10;
        return Frame{std::to_string(index) + std::string(size, '.'), {}};
      },
      40);
}

TYPED_TEST_P(ChannelContract, CarriesHeadersAloneAndNothingAtAll) {
  this->expect_exchange([](int, int, int) { return Frame{std::string("\0binary\xff", 8), {}}; });
  this->expect_exchange([](int, int, int) { return Frame{}; });
}

TYPED_TEST_P(ChannelContract, CarriesLargeHeaders) {
  this->expect_exchange([](int source, int, int) {
    return Frame{std::string(1 << 20, static_cast<char>('a' + source)), {at::ones({2})}};
  });
}

TYPED_TEST_P(ChannelContract, CountsFramesAndBytes) {
  this->expect_exchange([](int, int, int) {
    return Frame{"12345", {at::zeros({3}), at::Tensor(), at::zeros({10, 1000}, at::kByte)}};
  });
  const std::uint64_t peers = this->cluster_.size() - 1;
  for (auto& player : this->cluster_.players()) {
    const ChannelCounters& counters = player->channel->counters();
    EXPECT_EQ(counters.frames_sent, peers);
    EXPECT_EQ(counters.frames_received, peers);
    EXPECT_EQ(counters.header_bytes_sent, 5 * peers);
    EXPECT_EQ(counters.tensor_bytes_sent, (12 + 10'000) * peers);
  }
}

// ---- what is refused ---------------------------------------------------------------------------

TYPED_TEST_P(ChannelContract, RefusesPeersThatAreNot) {
  for (auto& player : this->cluster_.players()) {
    for (int peer : {-1, this->cluster_.size(), player->rank()}) {
      EXPECT_THROW(player->send(peer, Frame{}), UsageError) << peer;
    }
    EXPECT_TRUE(player->channel->drained());
  }
}

TYPED_TEST_P(ChannelContract, RefusesTensorsItCannotSend) {
  const at::Tensor meta = at::empty({2}, at::TensorOptions(at::kMeta));
  const at::Tensor sparse = at::ones({2, 2}).to_sparse();
  for (auto& player : this->cluster_.players()) {
    const int peer = (player->rank() + 1) % this->cluster_.size();
    EXPECT_THROW(player->send(peer, Frame{"", {at::ones({1}), meta}}), UnsupportedError);
    EXPECT_THROW(player->send(peer, Frame{"", {sparse}}), UnsupportedError);
    EXPECT_EQ(player->channel->counters().frames_sent, 0u);
  }
  this->expect_carries({at::ones({1})});
}

// ---- receivers and ports -----------------------------------------------------------------------

TYPED_TEST_P(ChannelContract, LetsTheReceiverAnswer) {
  constexpr int kHops = 50;
  for (auto& player : this->cluster_.players()) {
    Player* self = player.get();
    self->on_arrival([self](int source, Frame&& frame) {
      if (frame.text.size() < kHops) {
        frame.text += '.';
        self->send(source, Frame{frame.text, frame.tensors});
      }
      self->arrived.push_back({source, std::move(frame)});
    });
  }
  this->send_to_all([](int, int, int) { return Frame{".", {at::ones({3})}}; });
  this->cluster_.run_until_arrived(kHops * (this->cluster_.size() - 1));
}

TYPED_TEST_P(ChannelContract, KeepsFramesUntilThereIsAReceiver) {
  for (auto& player : this->cluster_.players()) player->channel->set_receiver(Port::kServer, {});
  this->send_to_all([](int, int, int) { return Frame{"early", {at::ones({3})}}; });
  for (auto& player : this->cluster_.players()) {
    for (int i = 0; i < 10; ++i) player->channel->poll();
    EXPECT_THAT(player->arrived, testing::IsEmpty());
    player->listen();
  }
  this->cluster_.run_until_arrived(this->cluster_.size() - 1);
}

TYPED_TEST_P(ChannelContract, BringsFramesToTheirPorts) {
  constexpr int kFrames = 20;
  for (auto& player : this->cluster_.players()) {
    const int peer = (player->rank() + 1) % this->cluster_.size();
    for (int i = 0; i < kFrames; ++i) {
      const at::Tensor tensor = at::full({i % 3 == 0 ? 5000 : 5}, i);
      player->send(peer, Frame{"server", {tensor}}, Port::kServer);
      player->send(peer, Frame{"group", {tensor}}, Port::kCollectives);
    }
  }
  this->cluster_.run_until([](Player& player) {
    return player.arrived.size() == kFrames && player.collectives.size() == kFrames;
  });
  for (auto& player : this->cluster_.players()) {
    for (auto& mail : player->arrived) EXPECT_EQ(mail.frame.text, "server");
    for (auto& mail : player->collectives) EXPECT_EQ(mail.frame.text, "group");
  }
}

TYPED_TEST_P(ChannelContract, APortWithoutAReceiverHoldsUpNoOther) {
  for (auto& player : this->cluster_.players()) player->channel->set_receiver(Port::kServer, {});
  for (auto& player : this->cluster_.players()) {
    const int peer = (player->rank() + 1) % this->cluster_.size();
    player->send(peer, Frame{"0", {at::ones({3})}}, Port::kServer);
    player->send(peer, Frame{"1", {}}, Port::kServer);
    player->send(peer, Frame{"group", {at::ones({3000})}}, Port::kCollectives);
  }
  this->cluster_.run_until([](Player& player) { return player.collectives.size() == 1; });
  for (auto& player : this->cluster_.players()) {
    EXPECT_THAT(player->arrived, testing::IsEmpty());
    player->listen();
  }
  this->cluster_.run_until_arrived(2);
  for (auto& player : this->cluster_.players()) {
    EXPECT_EQ(player->arrived[0].frame.text + player->arrived[1].frame.text, "01");
  }
}

// ---- much at once ------------------------------------------------------------------------------

TYPED_TEST_P(ChannelContract, TakesManyLargeTensorsOfManySendersAtOnce) {
  constexpr int kFrames = 10;
  const auto make = [](int source, int index) {
    return Frame{std::to_string(index),
                 {random_bits({100'000}, at::kDouble, source * 100 + index),
                  random_bits({3}, at::kDouble, index),
                  random_bits({2000 + index}, at::kDouble, source * 100 + index)}};
  };
  for (auto& player : this->cluster_.players()) {
    if (player->rank() == 0) continue;
    for (int i = 0; i < kFrames; ++i) player->send(0, make(player->rank(), i));
  }
  const std::size_t expected = kFrames * (this->cluster_.size() - 1);
  this->cluster_.run_until(
      [&](Player& player) { return player.rank() != 0 || player.arrived.size() == expected; });
  for (auto& player : this->cluster_.players()) {
    for (auto& mail : player->arrived) {
      expect_arrived_as(mail.frame, make(mail.source, std::stoi(mail.frame.text)));
    }
  }
}

TYPED_TEST_P(ChannelContract, SurvivesRandomTraffic) {
  this->expect_exchange(
      [](int source, int destination, int index) {
        std::mt19937_64 random(source * 1'000'003 + destination * 10'007 + index);
        Frame frame{std::to_string(100'000 + index) + std::string(random() % 200, 'h'), {}};
        for (std::uint64_t i = random() % 5; i > 0; --i) {
          const auto elements = static_cast<std::int64_t>(random() % (random() % 8 ? 600 : 60'000));
          frame.tensors.push_back(random_bits({elements}, at::kDouble, random()));
        }
        return frame;
      },
      150, /*ordered=*/false);
}

REGISTER_TYPED_TEST_SUITE_P(
    ChannelContract, CarriesEveryDtypeBitForBit, CarriesUndefinedScalarAndEmptyTensors,
    MakesStridedTensorsContiguous, CarriesOutLazyConjugationAndNegation,
    CarriesSizesAroundTheInlineLimit, MovesLargeTensorsBothWaysAtOnce, KeepsSmallFramesInOrder,
    KeepsHeadersInOrderWhateverTheirSize, CarriesHeadersAloneAndNothingAtAll, CarriesLargeHeaders,
    CountsFramesAndBytes, RefusesPeersThatAreNot, RefusesTensorsItCannotSend, LetsTheReceiverAnswer,
    KeepsFramesUntilThereIsAReceiver, BringsFramesToTheirPorts, APortWithoutAReceiverHoldsUpNoOther,
    TakesManyLargeTensorsOfManySendersAtOnce, SurvivesRandomTraffic);

}  // namespace smp::d2d
