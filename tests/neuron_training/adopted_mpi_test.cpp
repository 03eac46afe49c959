// neuron_training/adopted_mpi_test.cpp: the storages of a framework that computes on its device and
// has started the runtime itself, adopted by a job over MPI (smp/program/neuron.h): zoo models
// equal one process on the CPU.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "api/rank/rank.h"
#include "api/session/neuron_start.h"
#include "d2d/channel/channel.h"
#include "d2d/wires/neuron/played_neuron.h"
#include "smp/program/neuron.h"
#include "support/fake_device.h"
#include "support/own_mpi.h"
#include "support/refusal.h"
#include "zoo/differential.h"

/// The device computes what no device of LibTorch computes here.
const char* smp::support::fake_device_name() noexcept { return "neuron"; }

namespace smp::zoo {
namespace adopted_mpi_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// Of the machine that all ranks share, which have one parent.
struct Machine {
  Machine() : file("/dev/shm/smp_played_nrt_" + std::to_string(::getppid())) {
    ::setenv("PLAYED_NRT_MACHINE", file.c_str(), 1);
  }
  ~Machine() {
    ::MPI_Barrier(MPI_COMM_WORLD);
    ::unlink(file.c_str());
    ::MPI_Barrier(MPI_COMM_WORLD);
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  std::string file;
};

/// Has two cores of this process, and its tensors on the second one.
class Framework final : public NeuronStorages {
 public:
  static constexpr int kCores = 2, kOwn = 1;
  explicit Framework(int rank) : first_(kCores * rank) {
    static_cast<void>(support::fake_device());
    ::unsetenv("NEURON_RT_ROOT_COMM_ID");
    const auto visible = std::to_string(first_) + '-' + std::to_string(first_ + kCores - 1);
    ::setenv("NEURON_RT_VISIBLE_CORES", visible.c_str(), 1);
    EXPECT_EQ(neuron.library().init(1, "", ""), 0);
    tensor_ = neuron.control().all_host_memory(kOwn);
  }
  ~Framework() override {
    EXPECT_EQ(neuron.counters().tensors, 1);
    nrt_tensor* another = nullptr;
    EXPECT_EQ(
        neuron.library().tensor_allocate(d2d::NeuronLibrary::kOnDevice, kOwn, 512, "", &another), 0)
        << "the runtime lives";
    neuron.library().tensor_free(&another);
    neuron.library().close();
  }
  std::optional<Place> find(const void* address) const override {
    const void* const real = support::host_view(address);
    if (real == address) return std::nullopt;
    const auto offset = reinterpret_cast<std::uintptr_t>(real);
    return Place{tensor_, offset, SIZE_MAX - offset};
  }
  NeuronCore core() const { return {kOwn, neuron.knobs().first_absolute + first_ + kOwn}; }
  nrt_tensor* tensor() const { return tensor_; }
  using NeuronStorages::about_to_free;

  d2d::PlayedNeuron neuron{34};

 private:
  int first_;
  nrt_tensor* tensor_ = nullptr;
};

int own_rank() {
  int rank = 0;
  ::MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

Session start() {
  static int argc = 0;
  static char* argv[] = {nullptr};
  auto config = zoo_config("interleaved");
  config.device = "neuron";
  return init(argc, argv, config);
}

TEST(FrameworkOnNeuron, TrainsAsOneProcess) {
  std::vector<std::pair<Case, Trace>> references;
  const auto cases = all_cases();
  for (std::size_t i = 0; i < cases.size(); i += 6) {
    if (!cases[i].random) references.emplace_back(cases[i], train_in_one_process(cases[i]));
  }
  const Machine machine;
  const Framework framework(own_rank());
  const NeuronTensors neuron(framework, framework.core());
  const auto session = start();
  EXPECT_EQ(neuron.device().str(), "neuron:0");
  EXPECT_THAT(Rank::current().channel().routes().path(GlobalRank(rank() == 0 ? 1 : 0),
                                                      d2d::MemoryKind::kNeuron),
              HasSubstr("tensors over neuron_send_receive"));
  const auto before = framework.neuron.counters().results;
  for (const auto& [c, reference] : references) {
    SCOPED_TRACE(c.name);
    const auto ours = train_distributed(c, random_placement(c, size(), 17));
    expect_equal(ours, reference, 1e-12);
  }
  EXPECT_GT(framework.neuron.counters().results - before, 100) << "tensors between cores";
}

/// What is registered with a network ends before its memory.
TEST(FrameworkOnNeuron, TellsOfWhatItFrees) {
  const Machine machine;
  const Framework framework(own_rank());
  const NeuronTensors neuron(framework, framework.core());
  const auto session = start();
  std::vector<nrt_tensor*> freed;
  const auto watching = asked_neuron()->end().places.watch(
      [&](d2d::NeuronLibrary::Tensor* tensor) { freed.push_back(tensor); });
  framework.about_to_free(framework.tensor());
  EXPECT_THAT(freed, ElementsAre(framework.tensor()));
}

TEST(FrameworkOnNeuron, NamesItsCoreByBothNumbers) {
  const Machine machine;
  const Framework framework(own_rank());
  EXPECT_THAT(refusal([&] {
                NeuronTensors(framework, {2, 1});
              }),
              AllOf(HasSubstr("core 2 of this process"), HasSubstr("core 1 of its host")));
}

}  // namespace adopted_mpi_test
}  // namespace smp::zoo
