// device/run_log_test.cpp: the memory that a run's pictures show is that of the ranks' device.
#include "smp/run_log.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <filesystem>

#include "base/files.h"
#include "report/folder/run_folder.h"
#include "report/pictures/memory_use.h"
#include "smp/distributed_model.h"
#include "smp/module.h"
#include "smp/nn/linear.h"
#include "smp/session.h"
#include "smp/step.h"
#include "support/fake_device.h"

namespace smp {
namespace device_run_log_test {

constexpr std::int64_t kWidth = 512, kRows = 4096;
constexpr std::int64_t kActivation = kRows * kWidth * 4;  // 8 MiB

struct NetImpl : torch::nn::Module {
  nn::Linear linear = register_module("linear", nn::Linear(kWidth, kWidth));
  at::Tensor forward(const at::Tensor& x) { return linear(x).tanh().square().mean(); }
};
SMP_MODULE(Net);

/// Trains two steps; returns what the first stage is said to have held at most.
std::int64_t measured_memory() {
  const auto parent = std::filesystem::path(testing::TempDir()) / "device_run_log";
  Config config;
  config.device = "fake";
  std::int64_t measured = 0;
  run_local(
      1,
      [&] {
        torch::manual_seed(1);
        Net net;
        net->to(device());
        DistributedModel model(net);
        RunLog log("device", model, {.parent_folder = parent.string()});
        auto train = step([&](const at::Tensor& x) { model.backward(model(x)); });
        const auto x = torch::randn({kRows, kWidth}).to(device());
        for (int i = 0; i < 2; ++i) {
          train(x);
          log.measure();
        }
        log.finish();
        const auto file = log.folder() + "/" + report::kMemoryFile;
        measured = report::memory_use_from_json(base::read_file(file), file).at(0);
      },
      config);
  std::filesystem::remove_all(parent);
  return measured;
}

/// The batch, the product, its tanh and its square, gradients of the latter two, and weights of an
/// eighth with theirs; not ten times as much, and not nothing.
TEST(RunLogOnDevice, ShowsTheBytesOfTensorsOnTheDevice) {
  static_cast<void>(support::fake_device());
  const auto measured = measured_memory();
  EXPECT_GE(measured, 3 * kActivation);
  EXPECT_LE(measured, 7 * kActivation);
}

}  // namespace device_run_log_test
}  // namespace smp
