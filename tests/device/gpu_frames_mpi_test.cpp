// device/gpu_frames_mpi_test.cpp: tensors between GPUs of one machine, or between processes of one
// GPU, straight and through host memory; what happens where there is none.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>

#include "api/rank/rank_device.h"
#include "base/clock.h"
#include "d2d/channel/channel.h"
#include "d2d/job/gpu_wires.h"
#include "d2d/job/job_wires.h"
#include "d2d/job/machine_wires.h"
#include "d2d/job/mpi_session.h"
#include "d2d/wires/shm/host_shm_wire.h"
#include "support/own_mpi.h"

namespace smp::d2d {
namespace gpu_frames_mpi_test {

bool has_gpu() {
  return at::hasCUDA() &&
         at::globalContext().getAcceleratorHooksInterface(at::kCUDA).deviceCount() > 0;
}

/// Numbers that depend on who sends them, computed on the GPU when they are asked for.
at::Tensor numbers(std::int64_t elements, int source, int round, c10::Device device) {
  return at::arange(elements, at::TensorOptions(at::kInt).device(device))
      .remainder(251)
      .add(1000 * source + round);
}

struct Mail {
  int source;
  std::int64_t elements;
  at::Tensor tensor;
};

/// Around pages and pieces, and more than a window.
std::vector<std::int64_t> sizes() {
  std::vector<std::int64_t> all{1, 15, 16, 17, 1023, 1024, 1025, 30'000'000};
  for (const std::int64_t edge : {std::int64_t{256} << 10, std::int64_t{8} << 20}) {
    for (const int more : {-4, 0, 4}) all.push_back((edge + more) / 4);
  }
  return all;
}

/// Everyone sends every size to everyone at once, each in an order of its own.
void exchange(const MpiSession& session, Channel& channel, c10::Device device, int round) {
  std::vector<Mail> mail;
  channel.set_receiver(Port::kServer, [&](GlobalRank source, ArrivedFrame&& frame) {
    std::int64_t elements = 0;
    std::memcpy(&elements, frame.header.data(), sizeof elements);
    mail.push_back({source.value(), elements, std::move(frame.tensors.at(0))});
  });
  auto order = sizes();
  std::mt19937_64 random(static_cast<unsigned>(100 * round + session.rank().value()));
  std::shuffle(order.begin(), order.end(), random);
  for (const auto elements : order) {
    for (const GlobalRank peer : channel.members()) {
      if (peer == channel.rank()) continue;
      const auto tensor = numbers(elements, channel.rank().value(), round, device);
      channel.send(peer, Port::kServer, std::as_bytes(std::span(&elements, 1)), {}, tensor);
    }
    channel.poll();
  }
  const base::SteadyClock clock;
  const auto deadline = clock.now() + 60 * base::kSecond;
  const auto expected = order.size() * static_cast<std::size_t>(channel.size() - 1);
  while (mail.size() < expected || !channel.drained()) {
    ASSERT_LT(clock.now(), deadline) << mail.size() << " of " << expected << " came";
    channel.poll();
  }
  for (const auto& [source, elements, tensor] : mail) {
    ASSERT_EQ(tensor.numel(), elements);
    EXPECT_EQ(tensor.device(), device);
    EXPECT_TRUE(at::equal(tensor, numbers(elements, source, round, device)))
        << elements << " elements of rank " << source << " in round " << round;
  }
}

TEST(GpuFrames, BringEverySizeToEveryoneAtOnce) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU that LibTorch can use";
  const MpiSession session;
  const auto device = take_device("cuda", session.local_rank());
  for (const bool straight : {true, false}) {
    SCOPED_TRACE(straight ? "straight" : "through host memory");
    RouteOptions options;
    if (straight) options.device = device;
    Channel channel(fastest_routes(session, options));
    if (straight && session.rank().value() == 0) {
      std::printf("%s\n", channel.routes().table().c_str());
    }
    for (int round = 0; round < 3; ++round) exchange(session, channel, device, round);
    EXPECT_TRUE(channel.close(60 * base::kSecond));
  }
}

/// All ranks agree on it, and go on.
TEST(GpuFrames, WithoutAGpuThereIsNoWayBetweenGpus) {
  if (has_gpu()) GTEST_SKIP() << "there is a GPU here";
  const MpiSession session;
  const auto rings = connect_host_shm(session);
  if (rings == nullptr) GTEST_SKIP() << "this machine refuses shared memory";
  EXPECT_EQ(connect_cuda_ipc(session, c10::Device(c10::DeviceType::CUDA, 0), *rings), nullptr);
  EXPECT_TRUE(rings->close(60 * base::kSecond));
}

}  // namespace gpu_frames_mpi_test
}  // namespace smp::d2d
