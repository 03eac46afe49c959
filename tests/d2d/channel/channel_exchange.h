// d2d/channel/channel_exchange.h: all ranks of a cluster send to each other, and what arrives is
// what was sent.
#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "d2d/channel/channel_cluster.h"

namespace smp::d2d {

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
class ChannelExchange : public testing::Test {
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

  // Ranks 0 and 1 pass frames of collectives back and forth, whose tensors nobody protects, and
  // each changes its tensor when it has got one. Rank 0's tensor is large, rank 1's is of
  // `elements`; `others` go along, which nobody changes.
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
        self->send(1 - self->rank(), Frame{"", std::move(tensors)}, Port::kCollectives);
      };
      const auto pass_back = [self, tensor, pass_on](int source, Frame&& frame) {
        self->arrived.push_back({source, std::move(frame)});
        tensor.add_(1);
        if (self->arrived.size() < kRounds) pass_on();
      };
      self->on_arrival(pass_back, Port::kCollectives);
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

}  // namespace smp::d2d
