// LibTorch's tensors in the memory of a played Neuron core, and how they travel. In a program of
// its own: a process has one private-use device.
#include "d2d/wires/neuron/neuron_device.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <memory>
#include <utility>
#include <vector>

#include "base/machine/home_device.h"
#include "d2d/channel/channel_cluster.h"
#include "d2d/tensors/tensor_bytes.h"
#include "d2d/wires/local/local_wire.h"
#include "d2d/wires/neuron/played_neuron.h"
#include "d2d/wires/neuron_paths/neuron_staging_wire.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace neuron_device_test {

using testing::HasSubstr;

constexpr std::size_t kPoolBytes = 32 << 20;

struct NeuronTensors : public testing::Test {
  NeuronTensors() { base::set_home_device(NeuronDevice::device()); }
  ~NeuronTensors() override { base::set_home_device(c10::Device(c10::kCPU)); }

  static at::Tensor on_neuron(const at::Tensor& tensor) {
    return tensor.to(NeuronDevice::device());
  }

  PlayedNeuron neuron{34};
  NeuronRuntime runtime{neuron.library(), GlobalRank(0), neuron.claim(1, 2)};
  NeuronPool pool{runtime, RelativeCore(0), kPoolBytes};
  NeuronDevice device{runtime, pool};
};

/// Each layout, type and mark.
std::vector<std::pair<const char*, at::Tensor>> samples() {
  const auto numbers = at::arange(12'000, at::kDouble).view({120, 100});
  return {{"small", at::arange(6, at::kFloat)},
          {"of no dimension", at::scalar_tensor(3.5)},
          {"empty", at::empty({0, 3})},
          {"large", numbers},
          {"bfloat16", numbers.to(at::kBFloat16)},
          {"truth values", numbers > 3},
          {"complex", at::complex(numbers, numbers)}};
}

TEST_F(NeuronTensors, KeepWhatIsCopiedToThem) {
  for (const auto& [what, tensor] : samples()) {
    const auto there = on_neuron(tensor);
    EXPECT_EQ(there.device().str(), "neuron:0") << what;
    EXPECT_TRUE(at::equal(there.cpu(), tensor)) << what;
    EXPECT_EQ(memory_kind(there.device().type()), MemoryKind::kNeuron);
  }
  const auto large = at::arange(60, at::kFloat).view({6, 10});
  const auto there = on_neuron(large);
  EXPECT_TRUE(at::equal(there.t().cpu(), large.t()));
  EXPECT_TRUE(at::equal(there.select(1, 3).contiguous().cpu(), large.select(1, 3)));
  EXPECT_TRUE(
      at::equal(there.view({60}).slice(0, 7, 31, 2).cpu(), large.view({60}).slice(0, 7, 31, 2)));
  EXPECT_EQ(there[2][3].item<float>(), 23);
  there.select(1, 3).copy_(on_neuron(at::zeros({6}, at::kDouble)));
  auto expected = large.clone();
  expected.select(1, 3).zero_();
  EXPECT_TRUE(at::equal(there.cpu(), expected)) << "what lies between the elements stays";
}

TEST_F(NeuronTensors, AreMemoryOfThePool) {
  {
    const auto tensor = on_neuron(at::ones({1000}));
    EXPECT_EQ(pool.used(), 4096U);
    const auto part = tensor.slice(0, 500, 1000);
    const auto place = pool.find(static_cast<const std::byte*>(part.const_data_ptr()));
    ASSERT_TRUE(place.has_value());
    EXPECT_EQ(place->offset,
              pool.find(static_cast<const std::byte*>(tensor.const_data_ptr()))->offset + 2000);
  }
  EXPECT_EQ(pool.used(), 0U);
  EXPECT_THAT(refusal<ResourceError>([&] {
                at::empty({static_cast<std::int64_t>(kPoolBytes)}, NeuronDevice::device());
              }),
              HasSubstr("of its memory are free"));
}

TEST_F(NeuronTensors, AreRefusedAfterTheirCore) {
  const auto late = on_neuron(at::ones({10}));
  device.~NeuronDevice();
  EXPECT_THAT(refusal<PeerLostError>([&] { on_neuron(at::ones({10})); }),
              HasSubstr("after its core was released"));
  EXPECT_THAT(refusal<PeerLostError>([&] { late.cpu(); }), HasSubstr("was released"));
  new (&device) NeuronDevice(runtime, pool);
}

TEST_F(NeuronTensors, HaveOneCore) {
  EXPECT_THAT(refusal([&] { NeuronDevice(runtime, pool); }), HasSubstr("has memory already"));
}

/// Two ranks: control bytes and host memory over one wire, Neuron memory over another.
struct ChannelsOfTwo : NeuronTensors {
  ChannelsOfTwo() {
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<WireUse> uses;
      uses.push_back({std::make_unique<NeuronStagingWire>(
                          std::make_unique<LocalWire>(staged, GlobalRank(rank)),
                          std::make_unique<NeuronCopies>(runtime, RelativeCore(0)), pool,
                          NeuronStagingOptions{.piece_bytes = 10'000}),
                      /*control=*/false});
      uses.push_back({std::make_unique<LocalWire>(hub, GlobalRank(rank))});
      players.push_back(std::make_unique<Player>(Routes(std::move(uses))));
    }
  }
  void exchange(const Frame& frame) {
    players[0]->send(1, frame);
    const base::SteadyClock clock;
    const auto end = clock.now() + 20 * base::kSecond;
    while ((players[1]->arrived.empty() || !players[0]->channel->drained()) && clock.now() < end) {
      for (auto& player : players) player->channel->poll();
    }
    ASSERT_EQ(players[1]->arrived.size(), 1U);
  }
  std::shared_ptr<LocalHub> hub = std::make_shared<LocalHub>(2);
  std::shared_ptr<LocalHub> staged = std::make_shared<LocalHub>(2);
  std::vector<std::unique_ptr<Player>> players;
};

TEST_F(ChannelsOfTwo, BringTensorsFromCoreToCore) {
  const auto all = samples();
  {
    Frame frame{"of both kinds", {}};
    for (const auto& [what, tensor] : all) frame.tensors.push_back(on_neuron(tensor));
    frame.tensors.push_back(on_neuron(all[3].second).t());
    frame.tensors.push_back(all[3].second);
    exchange(frame);
  }
  const auto& arrived = players[1]->arrived[0].frame.tensors;
  ASSERT_EQ(arrived.size(), all.size() + 2);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(arrived[i].device(), NeuronDevice::device()) << all[i].first;
    EXPECT_TRUE(at::equal(arrived[i].cpu(), all[i].second)) << all[i].first;
  }
  EXPECT_TRUE(at::equal(arrived[all.size()].cpu(), all[3].second.t()));
  EXPECT_TRUE(arrived.back().is_cpu());
  EXPECT_EQ(players[0]->channel->routes().path(GlobalRank(1), MemoryKind::kNeuron),
            "local, tensors over neuron_staging");
  players[1]->arrived.clear();
  EXPECT_EQ(pool.used(), 0U) << "what was sent is freed when it has left";
}

TEST_F(NeuronTensors, AreCountedAsThoseOfOtherDevicesAre) {
  const auto before = tensor_bytes(NeuronDevice::device());
  ASSERT_TRUE(before);
  {
    const auto there = on_neuron(at::zeros({1000}));
    EXPECT_EQ(tensor_bytes(NeuronDevice::device())->live - before->live, 4096) << "whole blocks";
  }
  const auto after = tensor_bytes(NeuronDevice::device());
  EXPECT_EQ(after->live, before->live);
  EXPECT_GE(after->most - before->live, 4096);
  forget_most_tensor_bytes(NeuronDevice::device());
  EXPECT_EQ(tensor_bytes(NeuronDevice::device())->most, before->live);
}

}  // namespace neuron_device_test
}  // namespace smp::d2d
