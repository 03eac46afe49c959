// What every transport promises: one suite, run on each implementation.
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
#include "d2d/transport.h"

namespace smp::d2d {

/// A rank that this process plays, and what has reached it.
struct Player {
  struct Mail {
    int source;
    Frame frame;
  };

  explicit Player(std::unique_ptr<Transport> link) : transport(std::move(link)) {
    transport->set_failure_handler([this](const std::string& what) { failures.push_back(what); });
    listen();
  }
  void listen() {
    transport->set_receiver([this](int source, Frame&& frame) {
      arrived.push_back({source, std::move(frame)});
    });
  }
  int rank() const { return transport->rank(); }

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

  std::unique_ptr<Transport> transport;
  std::vector<Mail> arrived;
  std::vector<std::string> failures;
};

/// Connected ranks. Subclasses connect them and move messages on.
class Cluster {
 public:
  virtual ~Cluster() = default;

  std::vector<std::unique_ptr<Player>>& players() { return players_; }
  int size() const { return players_.front()->transport->size(); }

  /// Moves messages until `done`, which is asked of each player, holds for all and all have
  /// drained.
  void run_until(const std::function<bool(Player&)>& done) {
    const base::SteadyClock clock;
    const base::Nanoseconds end = clock.now() + 60 * base::kSecond;
    while (!all_done(done)) {
      SMP_ASSERT(clock.now() < end, "the transports did not get there within 60 s");
      advance();
    }
  }
  void run_until_arrived(std::size_t frames) {
    run_until([frames](Player& player) { return player.arrived.size() >= frames; });
  }

 protected:
  virtual void advance() {
    for (auto& player : players_) player->transport->poll();
  }
  std::vector<std::unique_ptr<Player>> players_;

 private:
  bool all_done(const std::function<bool(Player&)>& done) {
    for (auto& player : players_) {
      if (!player->transport->drained() || !done(*player)) return false;
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
  ASSERT_EQ(arrived.header, sent.header);
  ASSERT_EQ(arrived.tensors.size(), sent.tensors.size());
  for (std::size_t i = 0; i < sent.tensors.size(); ++i) {
    expect_arrived_as(arrived.tensors[i], sent.tensors[i]);
  }
}

/// Makes the frame number `index` that `source` sends to `destination`.
using MakeFrame = std::function<Frame(int source, int destination, int index)>;

template <class ClusterType>
class TransportContract : public testing::Test {
 protected:
  void send_to_all(const MakeFrame& make, int index = 0) {
    for (auto& player : cluster_.players()) {
      for (int peer = 0; peer < cluster_.size(); ++peer) {
        if (peer != player->rank()) {
          player->transport->send(peer, make(player->rank(), peer, index));
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
  static bool by_header(const Frame& left, const Frame& right) {
    return left.header < right.header;
  }
};

TYPED_TEST_SUITE_P(TransportContract);

TYPED_TEST_P(TransportContract, CarriesEveryDtypeBitForBit) {
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

TYPED_TEST_P(TransportContract, CarriesUndefinedScalarAndEmptyTensors) {
  this->expect_carries({at::Tensor(), random_bits({}, at::kDouble, 1), at::empty({0}),
                        at::empty({4, 0, 3}, at::kLong), at::Tensor(),
                        random_bits({1, 1, 1, 1, 1, 1, 1, 1, 1}, at::kFloat, 2)});
}

TYPED_TEST_P(TransportContract, MakesStridedTensorsContiguous) {
  const at::Tensor small = random_bits({6, 8}, at::kInt, 3);
  const at::Tensor large = random_bits({60, 80, 3}, at::kInt, 4);
  this->expect_carries({small.t(), small.slice(1, 0, 8, 2), small.select(1, 3),
                        small.select(0, 0).expand({5, 8}), large.permute({2, 0, 1}),
                        large.slice(0, 10, 50), at::ones({1}).expand({100, 100})});
}

TYPED_TEST_P(TransportContract, CarriesOutLazyConjugationAndNegation) {
  const at::Tensor numbers = at::arange(20).to(at::kComplexFloat) * c10::complex<float>(1, 2);
  this->expect_carries({numbers.conj(), at::imag(numbers.conj()),
                        at::_efficientzerotensor({3, 4}, at::TensorOptions(at::kFloat))});
}

TYPED_TEST_P(TransportContract, CarriesSizesAroundTheInlineLimit) {
  std::vector<at::Tensor> tensors;
  const auto limit = static_cast<std::int64_t>(kInlineBytes);
  for (std::int64_t bytes : {std::int64_t{1}, std::int64_t{15}, std::int64_t{16}, std::int64_t{17},
                             limit - 1, limit, limit + 1, 2 * limit}) {
    tensors.push_back(random_bits({bytes}, at::kByte, bytes));
  }
  this->expect_carries(tensors);
}

TYPED_TEST_P(TransportContract, MovesLargeTensorsBothWaysAtOnce) {
  this->expect_exchange([](int source, int destination, int) {
    return Frame{"large", {random_bits({1 << 20}, at::kDouble, source * 8 + destination)}};
  });
}

TYPED_TEST_P(TransportContract, KeepsSmallFramesInOrder) {
  this->expect_exchange(
      [](int source, int, int index) {
        return Frame{std::to_string(index), {at::full({index % 50}, source)}};
      },
      300);
}

TYPED_TEST_P(TransportContract, KeepsHeadersInOrderWhateverTheirSize) {
  this->expect_exchange(
      [](int, int, int index) {
        const std::size_t size = index % 5 == 0 ? 300'000 : index % 5 == 1 ? 5'000 : 10;
        return Frame{std::to_string(index) + std::string(size, '.'), {}};
      },
      40);
}

TYPED_TEST_P(TransportContract, CarriesHeadersAloneAndNothingAtAll) {
  this->expect_exchange([](int, int, int) { return Frame{std::string("\0binary\xff", 8), {}}; });
  this->expect_exchange([](int, int, int) { return Frame{}; });
}

TYPED_TEST_P(TransportContract, CarriesLargeHeaders) {
  this->expect_exchange([](int source, int, int) {
    return Frame{std::string(1 << 20, static_cast<char>('a' + source)), {at::ones({2})}};
  });
}

TYPED_TEST_P(TransportContract, CountsFramesAndBytes) {
  this->expect_exchange([](int, int, int) {
    return Frame{"12345", {at::zeros({3}), at::Tensor(), at::zeros({10, 1000}, at::kByte)}};
  });
  const std::uint64_t peers = this->cluster_.size() - 1;
  for (auto& player : this->cluster_.players()) {
    const TransportCounters& counters = player->transport->counters();
    EXPECT_EQ(counters.frames_sent, peers);
    EXPECT_EQ(counters.frames_received, peers);
    EXPECT_EQ(counters.header_bytes_sent, 5 * peers);
    EXPECT_EQ(counters.tensor_bytes_sent, (12 + 10'000) * peers);
  }
}

TYPED_TEST_P(TransportContract, RefusesPeersThatAreNot) {
  for (auto& player : this->cluster_.players()) {
    for (int peer : {-1, this->cluster_.size(), player->rank()}) {
      EXPECT_THROW(player->transport->send(peer, Frame{}), UsageError) << peer;
    }
    EXPECT_TRUE(player->transport->drained());
  }
}

TYPED_TEST_P(TransportContract, RefusesTensorsItCannotSend) {
  const at::Tensor meta = at::empty({2}, at::TensorOptions(at::kMeta));
  const at::Tensor sparse = at::ones({2, 2}).to_sparse();
  for (auto& player : this->cluster_.players()) {
    const int peer = (player->rank() + 1) % this->cluster_.size();
    EXPECT_THROW(player->transport->send(peer, Frame{"", {at::ones({1}), meta}}), UsageError);
    EXPECT_THROW(player->transport->send(peer, Frame{"", {sparse}}), UnsupportedError);
    EXPECT_EQ(player->transport->counters().frames_sent, 0u);
  }
  this->expect_carries({at::ones({1})});
}

TYPED_TEST_P(TransportContract, GivesNormalTensorsUnderInferenceMode) {
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

TYPED_TEST_P(TransportContract, ArrivesWithoutHistoryAndLeavesTheSendersTensorAlone) {
  const at::Tensor leaf = at::ones({50, 50}).requires_grad_();
  const at::Tensor result = leaf * 2;
  const auto version = result._version();
  this->expect_carries({leaf, result, result.t(), leaf.slice(0, 0, 2)});
  EXPECT_EQ(result._version(), version);
  EXPECT_NE(result.grad_fn(), nullptr);
}

TYPED_TEST_P(TransportContract, GivesEveryTensorItsOwnStorage) {
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

TYPED_TEST_P(TransportContract, LetsGoOfTensorsThatHaveLeft) {
  const at::Tensor small = at::ones({4});
  const at::Tensor large = at::ones({1 << 18});
  this->expect_carries({small, large});
  EXPECT_EQ(small.use_count(), 1u);
  EXPECT_EQ(large.use_count(), 1u);
}

TYPED_TEST_P(TransportContract, LetsTheReceiverAnswer) {
  constexpr int kHops = 50;
  for (auto& player : this->cluster_.players()) {
    Player* self = player.get();
    self->transport->set_receiver([self](int source, Frame&& frame) {
      if (frame.header.size() < kHops) {
        frame.header += '.';
        self->transport->send(source, Frame{frame.header, frame.tensors});
      }
      self->arrived.push_back({source, std::move(frame)});
    });
  }
  this->send_to_all([](int, int, int) { return Frame{".", {at::ones({3})}}; });
  this->cluster_.run_until_arrived(kHops * (this->cluster_.size() - 1));
}

TYPED_TEST_P(TransportContract, KeepsFramesUntilThereIsAReceiver) {
  for (auto& player : this->cluster_.players()) player->transport->set_receiver({});
  this->send_to_all([](int, int, int) { return Frame{"early", {at::ones({3})}}; });
  for (auto& player : this->cluster_.players()) {
    for (int i = 0; i < 10; ++i) player->transport->poll();
    EXPECT_THAT(player->arrived, testing::IsEmpty());
    player->listen();
  }
  this->cluster_.run_until_arrived(this->cluster_.size() - 1);
}

TYPED_TEST_P(TransportContract, SurvivesRandomTraffic) {
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
    TransportContract, CarriesEveryDtypeBitForBit, CarriesUndefinedScalarAndEmptyTensors,
    MakesStridedTensorsContiguous, CarriesOutLazyConjugationAndNegation,
    CarriesSizesAroundTheInlineLimit, MovesLargeTensorsBothWaysAtOnce, KeepsSmallFramesInOrder,
    KeepsHeadersInOrderWhateverTheirSize, CarriesHeadersAloneAndNothingAtAll, CarriesLargeHeaders,
    CountsFramesAndBytes, RefusesPeersThatAreNot, RefusesTensorsItCannotSend,
    GivesNormalTensorsUnderInferenceMode, ArrivesWithoutHistoryAndLeavesTheSendersTensorAlone,
    GivesEveryTensorItsOwnStorage, LetsGoOfTensorsThatHaveLeft, LetsTheReceiverAnswer,
    KeepsFramesUntilThereIsAReceiver, SurvivesRandomTraffic);

}  // namespace smp::d2d
