// A pipeline over MPI that asks for Neuron memory as programs do (smp/program/neuron.h): its
// modules pass each other tensors in the memory of played cores, and it trains as one process does.
#include "smp/program/neuron.h"

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "api/rank/rank.h"
#include "base/files.h"
#include "d2d/channel/channel.h"
#include "d2d/tensors/tensor_bytes.h"
#include "d2d/wires/neuron/played_neuron.h"
#include "report/folder/run_folder.h"
#include "report/pictures/memory_use.h"
#include "smp/distributed_model.h"
#include "smp/distributed_optimizer.h"
#include "smp/error.h"
#include "smp/module.h"
#include "smp/nn/linear.h"
#include "smp/run_log.h"
#include "smp/session.h"
#include "smp/step.h"
#include "support/own_mpi.h"
#include "support/refusal.h"

namespace smp {
namespace neuron_tensors_mpi_test {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kRows = 12, kWidth = 300;  // pieces of a microbatch above 4 KiB
constexpr int kSteps = 3, kParts = 4, kMicrobatches = 3;
constexpr const char* kSendReceiveSwitch = "NEURON_RT_ASYNC_SENDRECV_EXPERIMENTAL_ENABLED";
constexpr const char* kCollectiveSwitch = "NEURON_RT_ROOT_COMM_ID";

/// The host computes what comes from a core, and what it computes goes there.
struct PartImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& there) {
    EXPECT_EQ(there.device(), device_of_tensors);
    return linear(there.cpu()).tanh().to(there.device());
  }
  nn::Linear linear{register_module("linear", nn::Linear(kWidth, kWidth))};
  static inline c10::Device device_of_tensors{c10::kCPU};
};
SMP_MODULE(Part);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < kParts; ++i) {
      parts.push_back(register_module("part" + std::to_string(i), Part()));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    auto y = x.to(PartImpl::device_of_tensors);
    for (auto& part : parts) y = part(y);
    return y.cpu().square().mean();
  }
  std::vector<Part> parts;
};
SMP_MODULE(Net);

Net make_net() {
  torch::manual_seed(3);
  Net net;
  net->to(torch::kDouble);
  return net;
}

at::Tensor batch_of(int step) {
  return torch::linspace(-1, 1 + step, kRows * kWidth, torch::kDouble).view({kRows, kWidth}).sin();
}

/// Losses, and parameters by name after the last step.
struct Trace {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> finals;
};

const torch::optim::SGDOptions kSgd(0.3);

Trace train_in_one_process() {
  PartImpl::device_of_tensors = c10::kCPU;
  Trace trace;
  auto net = make_net();
  torch::optim::SGD optimizer(net->parameters(), kSgd);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    auto loss = net->forward(batch_of(step));
    trace.losses.push_back(loss.item<double>());
    loss.backward();
    optimizer.step();
  }
  for (const auto& item : net->named_parameters()) trace.finals[item.key()] = item.value().detach();
  return trace;
}

Trace train(DistributedModel<Net>& model) {
  Trace trace;
  DistributedOptimizer optimizer(model, torch::optim::SGD(model.parameters(), kSgd));
  auto of_batch = step([&](const at::Tensor& x) {
    auto loss = model(x);
    model.backward(loss);
    return loss;
  });
  for (int i = 0; i < kSteps; ++i) {
    optimizer.zero_grad();
    trace.losses.push_back(of_batch(batch_of(i)).reduce_mean().item<double>());
    optimizer.step();
  }
  for (const auto& [name, value] : model.local_named_parameters()) {
    trace.finals[name] = value.detach();
  }
  return trace;
}

/// The machine that all ranks share, by its file, and the runtime as a process finds it that
/// starts.
class NeuronJob : public testing::Test {
 protected:
  NeuronJob() { ::unsetenv(kCollectiveSwitch); }
  ~NeuronJob() override {
    ::MPI_Barrier(MPI_COMM_WORLD);
    ::unlink(machine_.file.c_str());
    ::unsetenv("PLAYED_NRT_MACHINE");
    ::MPI_Barrier(MPI_COMM_WORLD);
  }
  /// As in a container that sees a part of its host.
  NeuronMemory memory() const {
    return {.bytes = 8 << 20, .first_on_host = neuron_.knobs().first_absolute};
  }
  static Session start() {
    static int argc = 0;
    static char* argv[] = {nullptr};
    Config config;
    config.microbatches = kMicrobatches;
    config.plan_cache = "off";
    return init(argc, argv, config);
  }
  /// Each part on another rank than the one before.
  static void spread(DistributedModel<Net>& model) {
    model.set_partition("", 0);
    for (int i = 0; i < kParts; ++i) {
      model.set_partition("part" + std::to_string(i), (i + 1) % size());
    }
  }
  static std::string path() {
    const auto& routes = Rank::current().channel().routes();
    return routes.path(GlobalRank(rank() == 0 ? 1 : 0), d2d::MemoryKind::kNeuron);
  }
  /// @param over  the name of the path's wire
  void expect_as_in_one_process(const std::string& over) {
    const auto expected = train_in_one_process();
    const NeuronTensors neuron(memory());
    {
      const auto session = start();
      EXPECT_THAT(path(), testing::EndsWith("tensors over " + over));
      PartImpl::device_of_tensors = neuron.device();
      EXPECT_EQ(neuron.device().str(), "neuron:0");
      DistributedModel<Net> model(make_net());
      spread(model);
      const auto before = neuron_.counters().results;
      const auto ours = train(model);
      EXPECT_GE(neuron_.counters().results - before, 2 * kSteps * kMicrobatches);
      for (std::size_t i = 0; i < kSteps; ++i) {
        EXPECT_NEAR(ours.losses.at(i), expected.losses.at(i), 1e-12);
      }
      EXPECT_FALSE(ours.finals.empty() && rank() < kParts);
      for (const auto& [name, value] : ours.finals) {
        const auto gap = (value - expected.finals.at(name)).abs().max().item<double>();
        EXPECT_LE(gap, 1e-12) << name;
      }
    }
    EXPECT_EQ(d2d::tensor_bytes(neuron.device())->live, 0) << "what travelled is freed";
  }

  struct Machine {
    Machine() : file("/dev/shm/smp_played_nrt_" + std::to_string(::getppid())) {
      ::setenv("PLAYED_NRT_MACHINE", file.c_str(), 1);
    }
    std::string file;  // all ranks have one parent
  } machine_;
  d2d::PlayedNeuron neuron_{34};
};

TEST_F(NeuronJob, TrainsBySendAndReceive) { expect_as_in_one_process("neuron_send_receive"); }

TEST_F(NeuronJob, TrainsByCollectives) {
  ::setenv(kCollectiveSwitch, "127.0.0.1:45646", 1);
  neuron_.knobs().collective_ms = 30'000;
  expect_as_in_one_process("neuron_collectives");
}

TEST_F(NeuronJob, TrainsThroughHosts) {
  ::unsetenv(kSendReceiveSwitch);
  expect_as_in_one_process("neuron_staging");
}

/// The pool outlives a session, as do its tensors.
TEST_F(NeuronJob, HasItsMemoryAcrossSessions) {
  const NeuronTensors neuron(memory());
  at::Tensor there;
  {
    const auto session = start();
    there = at::full({10}, rank(), at::kDouble).to(neuron.device());
  }
  const auto session = start();
  EXPECT_TRUE(at::equal(there.cpu(), at::full({10}, rank(), at::kDouble)));
  const auto all = all_gather(there);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].device(), neuron.device());
    EXPECT_TRUE(at::equal(all[i].cpu(), at::full({10}, static_cast<int>(i), at::kDouble)));
  }
}

/// A session holds what its wires use.
TEST_F(NeuronJob, KeepsItsMemoryUntilItsSessionEnds) {
  auto neuron = std::make_unique<NeuronTensors>(memory());
  {
    const auto session = start();
    const auto there = at::ones({10}).to(neuron->device());
    neuron.reset();
    EXPECT_TRUE(at::equal(there.cpu(), at::ones({10})));
    EXPECT_THAT(refusal([] { NeuronTensors(); }), HasSubstr("while a session runs"));
  }
  EXPECT_EQ(neuron_.counters().tensors, 0);
}

TEST_F(NeuronJob, IsAskedForByAllRanksOrByNone) {
  std::unique_ptr<NeuronTensors> neuron;
  int own = 0;
  ::MPI_Comm_rank(MPI_COMM_WORLD, &own);
  if (own == 0) neuron = std::make_unique<NeuronTensors>();
  EXPECT_THAT(refusal([] { static_cast<void>(start()); }),
              AllOf(HasSubstr("smp::NeuronTensors"), HasSubstr("a pool"), HasSubstr("none")));
}

TEST_F(NeuronJob, SaysThatThereAreTooFewCores) {
  const NeuronTensors neuron({.cores = 1});
  EXPECT_THAT(refusal([] { static_cast<void>(start()); }),
              AllOf(HasSubstr("1 logical Neuron cores"), HasSubstr("NEURON_LOGICAL_NC_CONFIG")));
  EXPECT_THAT(refusal([&] { neuron.device(); }), HasSubstr("before smp::init()"));
  EXPECT_THAT(refusal([] { NeuronTensors(); }), HasSubstr("a second smp::NeuronTensors"));
  EXPECT_THAT(refusal([] { NeuronTensors({.bytes = 0}); }), HasSubstr("some bytes"));
}

/// What a core held at most is in the picture of the run: of each part something came and went.
TEST_F(NeuronJob, ShowsTheMemoryOfItsCores) {
  const NeuronTensors neuron(memory());
  const auto session = start();
  PartImpl::device_of_tensors = neuron.device();
  DistributedModel<Net> model(make_net());
  spread(model);
  const auto parent =
      std::filesystem::path(testing::TempDir()) / ("neuron_run_log_" + std::to_string(::getppid()));
  RunLog log("cores", model, {.parent_folder = parent.string()});
  auto of_batch = step([&](const at::Tensor& x) { model.backward(model(x)); });
  for (int i = 0; i < 2; ++i) {
    of_batch(batch_of(i));
    log.measure();
  }
  log.finish();
  if (rank() != 0) return;
  const auto file = log.folder() + "/" + report::kMemoryFile;
  constexpr std::int64_t kTensor = kRows / kMicrobatches * kWidth * 8;
  const auto most = report::memory_use_from_json(base::read_file(file), file);
  EXPECT_THAT(most, testing::SizeIs(size()));
  EXPECT_THAT(most, testing::Each(AllOf(testing::Ge(kTensor), testing::Le(40 * kTensor))));
  std::filesystem::remove_all(parent);
}

}  // namespace neuron_tensors_mpi_test
}  // namespace smp
