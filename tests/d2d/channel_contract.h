// What a channel promises over any wires: one suite, run on each of them and on mixtures.
//
// A Cluster plays one, several or all of the ranks; the tests give every rank it plays the same
// part.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "d2d/channel.h"

namespace smp::d2d {

/// What is sent and arrives. The first bytes of the text travel as header, the rest as body.
struct Frame {
  std::string text;
  std::vector<at::Tensor> tensors;
};

/// A rank that this process plays, and what has reached it.
struct Player {
  struct Mail {
    int source;
    Frame frame;
  };
  static constexpr std::size_t kHeaderBytes = 6;

  explicit Player(Routes routes) : channel(std::make_unique<Channel>(std::move(routes))) {
    channel->set_failure_handler([this](const std::string& what) { failures.push_back(what); });
    channel->set_receiver(Port::kCollectives, [this](GlobalRank source, ArrivedFrame&& frame) {
      collectives.push_back({source.value(), to_frame(std::move(frame))});
    });
    listen();
  }
  void listen() {
    on_arrival([this](int source, Frame&& frame) {
      arrived.push_back({source, std::move(frame)});
    });
  }
  void on_arrival(std::function<void(int, Frame&&)> receiver) {
    channel->set_receiver(Port::kServer, [receiver](GlobalRank source, ArrivedFrame&& frame) {
      receiver(source.value(), to_frame(std::move(frame)));
    });
  }
  static Frame to_frame(ArrivedFrame&& arrived) {
    EXPECT_LE(arrived.header.size(), kHeaderBytes);
    std::string text(reinterpret_cast<const char*>(arrived.header.data()), arrived.header.size());
    text.append(reinterpret_cast<const char*>(arrived.body.data()), arrived.body.size());
    return {std::move(text), std::move(arrived.tensors)};
  }
  void send(int peer, const Frame& frame, Port port = Port::kServer) {
    const std::string_view text = frame.text;
    const std::string_view header = text.substr(0, kHeaderBytes);
    channel->send(GlobalRank(peer), port, std::as_bytes(std::span(header)),
                  text.substr(header.size()), frame.tensors);
  }
  int rank() const { return channel->rank().value(); }

  /// How many ranks have sent at least `count` frames.
  int sources_with(int count) const {
    std::map<int, int> frames;
    for (const Mail& mail : arrived) ++frames[mail.source];
    return std::count_if(frames.begin(), frames.end(),
                         [count](const auto& entry) { return entry.second >= count; });
  }
  /// Removes the first `count` frames from `source`; a quicker rank may have begun what comes next.
  std::vector<Frame> take(int source, int count) {
    std::vector<Frame> taken;
    for (auto mail = arrived.begin(); mail != arrived.end() && count > 0;) {
      const bool wanted = mail->source == source;
      if (wanted) taken.push_back(std::move(mail->frame));
      count -= wanted;
      mail = wanted ? arrived.erase(mail) : mail + 1;
    }
    return taken;
  }

  std::vector<Mail> arrived;
  std::vector<Mail> collectives;  // at the other port
  std::vector<std::string> failures;
  std::unique_ptr<Channel> channel;
};

/// Connected ranks. Subclasses connect them and move messages on.
class Cluster {
 public:
  virtual ~Cluster() = default;

  std::vector<std::unique_ptr<Player>>& players() { return players_; }
  int size() const { return players_.front()->channel->size(); }

  /// Moves messages until `done`, which is asked of each player, holds for all and all have
  /// drained.
  void run_until(const std::function<bool(Player&)>& done) {
    const base::SteadyClock clock;
    const base::Nanoseconds end = clock.now() + 60 * base::kSecond;
    while (!all_done(done)) {
      SMP_ASSERT(clock.now() < end, "the channels did not get there within 60 s; ", state());
      advance();
    }
  }
  void run_until_arrived(std::size_t frames) {
    run_until([frames](Player& player) { return player.arrived.size() >= frames; });
  }

 protected:
  virtual void advance() {
    for (auto& player : players_) player->channel->poll();
  }
  std::vector<std::unique_ptr<Player>> players_;

 private:
  std::string state() const {
    std::string text;
    for (const auto& player : players_) {
      text += base::concat("rank ", player->rank(), " has got ", player->arrived.size(), " frames",
                           player->channel->drained() ? "" : ", has not drained");
      for (const std::string& failure : player->failures) text += ", says: " + failure;
      text += "; ";
    }
    return text;
  }
  bool all_done(const std::function<bool(Player&)>& done) {
    for (auto& player : players_) {
      if (!player->channel->drained() || !done(*player)) return false;
    }
    return true;
  }
};

/// Random bits of any type; any rank can make the tensor that another one sent.
inline at::Tensor random_bits(at::IntArrayRef sizes, c10::ScalarType dtype, std::uint64_t seed) {
  at::Tensor tensor = at::empty(sizes, dtype);
  auto* bytes = static_cast<std::byte*>(tensor.mutable_data_ptr());
  std::mt19937_64 random(seed);
  const std::uint64_t mask = dtype == at::kBool ? 0x0101010101010101u : ~std::uint64_t{0};
  for (std::size_t i = 0; i < tensor.nbytes(); i += sizeof mask) {
    const std::uint64_t bits = random() & mask;
    std::memcpy(bytes + i, &bits, std::min(sizeof bits, tensor.nbytes() - i));
  }
  return tensor;
}

/// Bit-equal (so that NaNs compare), contiguous, a normal leaf without history.
inline void expect_arrived_as(const at::Tensor& arrived, const at::Tensor& sent) {
  ASSERT_EQ(arrived.defined(), sent.defined());
  if (!sent.defined()) return;
  ASSERT_EQ(arrived.scalar_type(), sent.scalar_type());
  ASSERT_EQ(arrived.sizes(), sent.sizes());
  EXPECT_TRUE(arrived.is_contiguous());
  EXPECT_FALSE(arrived.requires_grad());
  EXPECT_FALSE(arrived.is_inference());
  const at::Tensor expected = at::empty(sent.sizes(), sent.scalar_type()).copy_(sent.detach());
  if (sent.numel() == 0) return;
  EXPECT_EQ(0, std::memcmp(arrived.const_data_ptr(), expected.const_data_ptr(), expected.nbytes()))
      << sent.scalar_type() << " " << sent.sizes();
}

inline void expect_arrived_as(const Frame& arrived, const Frame& sent) {
  ASSERT_EQ(arrived.text, sent.text);
  ASSERT_EQ(arrived.tensors.size(), sent.tensors.size());
  for (std::size_t i = 0; i < sent.tensors.size(); ++i) {
    expect_arrived_as(arrived.tensors[i], sent.tensors[i]);
  }
}

/// Makes the frame number `index` that `source` sends to `destination`.
using MakeFrame = std::function<Frame(int source, int destination, int index)>;

template <class ClusterType>
class ChannelContract : public testing::Test {
 protected:
  void send_to_all(const MakeFrame& make, int index = 0) {
    for (auto& player : cluster_.players()) {
      for (int peer = 0; peer < cluster_.size(); ++peer) {
        if (peer != player->rank()) {
          player->send(peer, make(player->rank(), peer, index));
        }
      }
    }
  }

  // Every rank sends `count` frames to every other; they arrive whole, once, and in order if
  // `ordered`.
  void expect_exchange(const MakeFrame& make, int count = 1, bool ordered = true) {
    for (int i = 0; i < count; ++i) send_to_all(make, i);
    cluster_.run_until(
        [&](Player& player) { return player.sources_with(count) == cluster_.size() - 1; });
    for (auto& player : cluster_.players()) expect_from_all(*player, make, count, ordered);
  }

  // Like expect_exchange for one frame of these tensors.
  void expect_carries(const std::vector<at::Tensor>& tensors) {
    expect_exchange([&](int, int, int) { return Frame{"tensors", tensors}; });
  }

  // Ranks 0 and 1 pass frames back and forth, and each changes its tensor when it has got one. Rank
  // 0's tensor is large, rank 1's is of `elements`; `others` go along, which nobody changes.
  void expect_no_reports(std::int64_t elements, std::size_t others = 0) {
    const std::vector<at::Tensor> unchanged(others, at::zeros({2000}));
    constexpr std::size_t kRounds = 100;
    std::map<int, at::Tensor> tensors{{0, at::zeros({5000})}, {1, at::zeros({elements})}};
    for (auto& player : cluster_.players()) {
      if (player->rank() > 1) continue;
      Player* const self = player.get();
      const at::Tensor tensor = tensors[self->rank()];
      const auto pass_on = [self, tensor, unchanged] {
        auto tensors = unchanged;
        tensors.push_back(tensor);
        self->send(1 - self->rank(), Frame{"", std::move(tensors)});
      };
      self->on_arrival([self, tensor, pass_on](int source, Frame&& frame) {
        self->arrived.push_back({source, std::move(frame)});
        tensor.add_(1);
        if (self->arrived.size() < kRounds) pass_on();
      });
      if (self->rank() == 0) pass_on();
    }
    cluster_.run_until(
        [](Player& player) { return player.rank() > 1 || player.arrived.size() >= kRounds - 1; });
    for (auto& player : cluster_.players()) EXPECT_THAT(player->failures, testing::IsEmpty());
  }

  ClusterType cluster_;

 private:
  void expect_from_all(Player& player, const MakeFrame& make, int count, bool ordered) {
    EXPECT_THAT(player.failures, testing::IsEmpty());
    for (int source = 0; source < cluster_.size(); ++source) {
      if (source == player.rank()) continue;
      std::vector<Frame> arrived = player.take(source, count);
      std::vector<Frame> sent;
      for (int i = 0; i < count; ++i) sent.push_back(make(source, player.rank(), i));
      if (!ordered) {
        std::sort(arrived.begin(), arrived.end(), by_header);
        std::sort(sent.begin(), sent.end(), by_header);
      }
      for (int i = 0; i < count; ++i) expect_arrived_as(arrived[i], sent[i]);
    }
  }
  static bool by_header(const Frame& left, const Frame& right) { return left.text < right.text; }
};

TYPED_TEST_SUITE_P(ChannelContract);

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
    EXPECT_THROW(player->send(peer, Frame{"", {at::ones({1}), meta}}), UsageError);
    EXPECT_THROW(player->send(peer, Frame{"", {sparse}}), UnsupportedError);
    EXPECT_EQ(player->channel->counters().frames_sent, 0u);
  }
  this->expect_carries({at::ones({1})});
}

TYPED_TEST_P(ChannelContract, GivesNormalTensorsUnderInferenceMode) {
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

TYPED_TEST_P(ChannelContract, ArrivesWithoutHistoryAndLeavesTheSendersTensorAlone) {
  const at::Tensor leaf = at::ones({50, 50}).requires_grad_();
  const at::Tensor result = leaf * 2;
  const auto version = result._version();
  this->expect_carries({leaf, result, result.t(), leaf.slice(0, 0, 2)});
  EXPECT_EQ(result._version(), version);
  EXPECT_NE(result.grad_fn(), nullptr);
}

TYPED_TEST_P(ChannelContract, GivesEveryTensorItsOwnStorage) {
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

TYPED_TEST_P(ChannelContract, LetsGoOfTensorsThatHaveLeft) {
  const at::Tensor small = at::ones({4});
  const at::Tensor large = at::ones({1 << 18});
  this->expect_carries({small, large});
  EXPECT_EQ(small.storage().use_count(), 1u);
  EXPECT_EQ(large.storage().use_count(), 1u);
}

TYPED_TEST_P(ChannelContract, KeepsTensorsAliveWithoutTheirHistory) {
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

TYPED_TEST_P(ChannelContract, NeedsSmallTensorsOnlyDuringTheCall) {
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

TYPED_TEST_P(ChannelContract, ReportsATensorThatWasChangedInFlight) {
  at::Tensor tensor = at::zeros({1 << 20});
  for (auto& player : this->cluster_.players()) {
    if (player->rank() != 0) continue;
    player->send(1, Frame{"changed", {at::ones({1}), tensor}});
    tensor.add_(1);
  }
  this->cluster_.run_until(
      [](Player& player) { return player.rank() != 1 || !player.arrived.empty(); });
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

TYPED_TEST_P(ChannelContract, AllowsChangesOfWhatItCopied) {
  at::Tensor tensor = at::zeros({1024, 1024});
  this->send_to_all([&](int, int, int) { return Frame{"strided", {tensor.t()}}; });
  tensor.add_(1);
  this->cluster_.run_until_arrived(this->cluster_.size() - 1);
  for (auto& player : this->cluster_.players()) {
    EXPECT_THAT(player->failures, testing::IsEmpty());
    EXPECT_EQ(player->arrived.front().frame.tensors[0].sum().template item<float>(), 0);
  }
}

TYPED_TEST_P(ChannelContract, AllowsChangesOnceTheAnswerIsThere) { this->expect_no_reports(5000); }

TYPED_TEST_P(ChannelContract, AllowsChangesOnceASmallAnswerIsThere) { this->expect_no_reports(1); }

// More than a wire looks at in one go: the answer must not be seen before what it answers has left.
TYPED_TEST_P(ChannelContract, AllowsChangesOnceAnAnswerOfManyTensorsIsThere) {
  this->expect_no_reports(5000, 150);
}

TYPED_TEST_P(ChannelContract, TellsWhenTensorsHaveLeft) {
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
    CountsFramesAndBytes, RefusesPeersThatAreNot, RefusesTensorsItCannotSend,
    GivesNormalTensorsUnderInferenceMode, ArrivesWithoutHistoryAndLeavesTheSendersTensorAlone,
    GivesEveryTensorItsOwnStorage, LetsGoOfTensorsThatHaveLeft,
    KeepsTensorsAliveWithoutTheirHistory, NeedsSmallTensorsOnlyDuringTheCall,
    ReportsATensorThatWasChangedInFlight, AllowsChangesOfWhatItCopied,
    AllowsChangesOnceTheAnswerIsThere, AllowsChangesOnceASmallAnswerIsThere,
    AllowsChangesOnceAnAnswerOfManyTensorsIsThere, TellsWhenTensorsHaveLeft, LetsTheReceiverAnswer,
    KeepsFramesUntilThereIsAReceiver, BringsFramesToTheirPorts, APortWithoutAReceiverHoldsUpNoOther,
    TakesManyLargeTensorsOfManySendersAtOnce, SurvivesRandomTraffic);

}  // namespace smp::d2d
