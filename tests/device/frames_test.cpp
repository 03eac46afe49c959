// device/frames_test.cpp: tensors of a device whose memory no wire reaches travel through host
// memory, and arrive on the device; collectives of such tensors.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "d2d/channel/channel_cluster.h"
#include "d2d/channel/frame_decoder.h"
#include "d2d/channel/frame_encoder.h"
#include "d2d/tensors/tensor_data.h"
#include "d2d/wire/simulated_job.h"
#include "d2d/wires/local_cluster.h"
#include "support/fake_device.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace frames_test {

using support::fake_counters;
using support::fake_device;
using testing::HasSubstr;

at::Tensor on_fake(const at::Tensor& tensor) { return tensor.to(fake_device()); }

void expect_same(const at::Tensor& arrived, const at::Tensor& sent, const char* what) {
  ASSERT_EQ(arrived.defined(), sent.defined()) << what;
  if (!sent.defined()) return;
  EXPECT_EQ(arrived.device(), sent.device()) << what;
  EXPECT_EQ(arrived.scalar_type(), sent.scalar_type()) << what;
  EXPECT_TRUE(at::equal(arrived.cpu(), sent.cpu())) << what;
  EXPECT_TRUE(arrived.is_contiguous()) << what;
}

/// Inline and large ones, in every form.
std::vector<std::pair<const char*, at::Tensor>> samples() {
  const auto numbers = at::arange(12'000, at::kDouble).view({120, 100});
  return {{"small", on_fake(at::arange(6, at::kFloat))},
          {"of no dimension", on_fake(at::scalar_tensor(3.5))},
          {"empty", on_fake(at::empty({0, 3}))},
          {"large", on_fake(numbers)},
          {"strided", on_fake(numbers).t()},
          {"strided and small", on_fake(numbers).select(1, 3)},
          {"bfloat16", on_fake(numbers.to(at::kBFloat16))},
          {"truth values", on_fake(numbers > 3)},
          {"complex", on_fake(at::complex(numbers, numbers))},
          {"conjugated", on_fake(at::complex(numbers, numbers)).conj()},
          {"on the CPU", numbers},
          {"small on the CPU", at::ones({2})},
          {"undefined", at::Tensor()}};
}

TEST(DeviceFrames, BringTensorsFromDeviceToDevice) {
  LocalCluster cluster({}, 2);
  const auto sent = samples();
  Frame frame{"of both kinds", {}};
  for (const auto& [what, tensor] : sent) frame.tensors.push_back(tensor);
  const auto before = fake_counters();
  cluster.player(0).send(1, frame);
  const base::SteadyClock clock;
  const auto deadline = clock.now() + 20 * base::kSecond;
  while (cluster.player(1).arrived.empty() && clock.now() < deadline) {
    cluster.player(0).channel->poll();
    cluster.player(1).channel->poll();
  }
  ASSERT_EQ(cluster.player(1).arrived.size(), 1U);
  const auto after = fake_counters();
  const auto& arrived = cluster.player(1).arrived[0].frame;
  EXPECT_EQ(arrived.text, frame.text);
  for (std::size_t i = 0; i < sent.size(); ++i) {
    expect_same(arrived.tensors[i], sent[i].second, sent[i].first);
  }
  const auto of_device = std::count_if(sent.begin(), sent.end(), [](const auto& each) {
    return each.second.defined() && !each.second.is_cpu() && each.second.numel() > 0;
  });
  EXPECT_EQ(after.to_host - before.to_host, of_device) << "one copy a tensor, each way";
  EXPECT_LE(after.to_device - before.to_device, of_device + 1);
}

/// What was sent may be written to at once: its copy has left.
TEST(DeviceFrames, ArriveAsTheyWereWhenTheyWereSent) {
  LocalCluster cluster({}, 2);
  const auto tensor = on_fake(at::ones({50, 50}));
  cluster.player(0).send(1, {"", {tensor}});
  tensor.zero_();
  for (int i = 0; i < 100 && cluster.player(1).arrived.empty(); ++i) {
    cluster.player(0).channel->poll();
    cluster.player(1).channel->poll();
  }
  ASSERT_EQ(cluster.player(1).arrived.size(), 1U);
  EXPECT_TRUE(at::equal(cluster.player(1).arrived[0].frame.tensors[0].cpu(), at::ones({50, 50})));
  EXPECT_TRUE(cluster.player(0).failures.empty());
}

/// The frame of a rank with other devices: the stub of the tensor says so.
TEST(DeviceFrames, SayWhenTheReceiverHasNoSuchDevice) {
  ByteBuffer control;
  std::vector<DataTensor> data;
  TransferId next = 0;
  const std::vector<at::Tensor> tensors{on_fake(at::ones({3}))};
  encode_frame({Port::kServer, {}, "", tensors}, {0, kNoWire, kNoWire}, next, control, data);
  control.data()[32 + 12] = static_cast<std::byte>(c10::DeviceType::HPU);
  const auto frame = decode_frame(control.span(), data);
  ASSERT_EQ(frame.staged.size(), 1U);
  EXPECT_THAT(
      refusal<UnsupportedError>([&] { on_device(frame.tensors[0], frame.staged[0].device); }),
      HasSubstr("a tensor on the device hpu"));
  control.data()[32 + 12] = std::byte{200};
  EXPECT_THAT(refusal<InternalError>([&] { decode_frame(control.span(), data); }),
              HasSubstr("a tensor on device 200"));
}

TEST(DeviceFrames, MakeCollectivesOfDeviceTensors) {
  constexpr int kRanks = 3;
  SimulatedJob job(kRanks);
  std::vector<std::function<void()>> bodies;
  std::vector<at::Tensor> sums(kRanks), gathered(kRanks), scattered(kRanks), exchanged(kRanks),
      broadcast(kRanks);
  const auto own = [](int rank) {
    return at::arange(6'000, at::kDouble).view({6, 1'000}) * (rank + 1);
  };
  for (int rank = 0; rank < kRanks; ++rank) {
    bodies.push_back([&, rank] {
      const auto i = static_cast<std::size_t>(rank);
      const auto all = job.rank(rank).group(members({0, 1, 2}));
      const auto tensor = on_fake(own(rank));
      sums[i] = all.all_reduce(tensor);
      gathered[i] = all.all_gather(tensor);
      scattered[i] = all.reduce_scatter(tensor);
      exchanged[i] = all.all_to_all(tensor);
      broadcast[i] = all.broadcast_tensor(rank == 1 ? tensor : at::Tensor(), tensor.sizes(),
                                          at::kDouble, GlobalRank(1));
    });
  }
  job.run(bodies);
  EXPECT_THAT(job.failures, testing::IsEmpty());
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto i = static_cast<std::size_t>(rank);
    expect_same(sums[i], on_fake(own(0) * 6), "a sum");
    expect_same(gathered[i], on_fake(at::cat({own(0), own(1), own(2)})), "what was gathered");
    expect_same(scattered[i], on_fake((own(0) * 6).narrow(0, 2 * rank, 2)), "a part of a sum");
    const auto part = [&](int of) { return own(of).narrow(0, 2 * rank, 2); };
    expect_same(exchanged[i], on_fake(at::cat({part(0), part(1), part(2)})), "what was exchanged");
    expect_same(broadcast[i], on_fake(own(1)), "what was told to all");
  }
}

}  // namespace frames_test
}  // namespace smp::d2d
