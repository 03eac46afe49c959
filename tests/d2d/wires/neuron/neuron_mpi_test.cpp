// Tensors between Neuron cores of several processes, over a played runtime that they share:
// transfers on each path, and which path is taken.
#include <unistd.h>

#include <gmock/gmock.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "d2d/job/neuron_wires.h"
#include "d2d/job/shared_mpi_session.h"
#include "d2d/wire/wire_contract.h"
#include "d2d/wires/neuron/neuron_pool.h"
#include "d2d/wires/neuron/neuron_probe_memory.h"
#include "d2d/wires/neuron/played_neuron.h"

namespace smp::d2d {
namespace neuron_mpi_test {

using testing::AllOf;
using testing::HasSubstr;

/// Of wire_contract.h only the cluster is used here.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(WireContract);

constexpr base::Nanoseconds kPatience = 60 * base::kSecond;

/// A rank's core of the machine that all ranks share.
struct CoreOfRank {
  explicit CoreOfRank(int minor) : machine(shared_mpi_session()), neuron(minor) {
    neuron.knobs().collective_ms = 30'000;  // ranks wait for cores of this machine
  }
  /// The file is one of this job.
  struct Machine {
    explicit Machine(const MpiSession& job) : job(job) {
      file = job.all_gather(base::concat("/dev/shm/smp_played_nrt_", ::getpid()))[0];
      ::setenv("PLAYED_NRT_MACHINE", file.c_str(), 1);
      job.barrier();
    }
    ~Machine() {
      job.barrier();
      ::unlink(file.c_str());
      ::unsetenv("PLAYED_NRT_MACHINE");
      job.barrier();
    }
    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;
    const MpiSession& job;
    std::string file;
  };

  Machine machine;
  PlayedNeuron neuron;
  NeuronRuntime runtime{neuron.library(), machine.job.rank(),
                        share_of_cores(neuron.knobs().cores, machine.job.local_rank(),
                                       machine.job.local_size(), neuron.knobs().first_absolute)};
};

template <int kMinor, NeuronPath kPath>
class NeuronMpiWires : public WireCluster {
 public:
  NeuronMpiWires() {
    const NeuronEnd end{core_.runtime, RelativeCore(0), places_, [this] { return host_memory(); }};
    std::string problem;
    auto wire = connect_neuron(shared_mpi_session(), end, kPath, problem);
    SMP_ASSERT(wire, problem);
    ends_.push_back(std::make_unique<WireEnd>(std::move(wire)));
  }
  ~NeuronMpiWires() override {
    EXPECT_TRUE(ends_.front()->wire().close(kPatience));
    ends_.clear();
    core_.neuron.expect_empty(1);
  }
  MemoryKind kind() const override { return MemoryKind::kNeuron; }

 private:
  struct HostMemory final : ProbeMemory {
    std::span<std::byte> allocate(std::size_t bytes) override {
      return *blocks.emplace_back(std::make_unique<Bytes>(bytes));
    }
    void write(std::span<std::byte> to, const Bytes& bytes) override {
      std::copy(bytes.begin(), bytes.end(), to.begin());
    }
    Bytes read(std::span<const std::byte> from) override { return {from.begin(), from.end()}; }
    std::vector<std::unique_ptr<Bytes>> blocks;
  };
  static std::unique_ptr<ProbeMemory> host_memory() { return std::make_unique<HostMemory>(); }

  CoreOfRank core_{kMinor};
  HostAsNeuronPlaces places_{core_.neuron, RelativeCore(0)};
};

/// Sizes and directions at random; the whole contract runs within a process.
template <class Wires>
void carry_some() {
  Wires wires;
  auto& end = *wires.ends().front();
  const auto plan = random_transfers(wires.members(), 200, 1);
  TransferPart part(end, plan, 2);
  wires.run_until([&](WireEnd&) {
    part.act(20);
    return part.done();
  });
  part.expect_right();
}

TEST(NeuronBetweenProcesses, GoesThroughHosts) {
  carry_some<NeuronMpiWires<30, NeuronPath::kStaging>>();
  carry_some<NeuronMpiWires<31, NeuronPath::kStaging>>();
}

TEST(NeuronBetweenProcesses, SendsAndReceives) {
  carry_some<NeuronMpiWires<30, NeuronPath::kSendReceive>>();
  carry_some<NeuronMpiWires<34, NeuronPath::kSendReceive>>();
}

TEST(NeuronBetweenProcesses, DoCollectivesOfTwo) {
  carry_some<NeuronMpiWires<30, NeuronPath::kCollectives>>();
  carry_some<NeuronMpiWires<34, NeuronPath::kCollectives>>();
}

/// With memory of the cores, as in a job.
class NeuronJob : public testing::Test {
 protected:
  NeuronJob() { ::unsetenv("NEURON_RT_ROOT_COMM_ID"); }
  std::unique_ptr<Wire> connect() {
    const NeuronEnd end{core_.runtime, RelativeCore(0), pool_, [this] {
                          return std::make_unique<NeuronProbeMemory>(core_.runtime, pool_);
                        }};
    return connect_neuron(shared_mpi_session(), end,
                          [this](const std::string& text) { warning_ = text; });
  }
  CoreOfRank core_{34};
  NeuronPool pool_{core_.runtime, RelativeCore(0), 8 << 20};
  std::string warning_;
};

TEST_F(NeuronJob, DoesCollectivesWhereTheirVariableIsSet) {
  ::setenv("NEURON_RT_ROOT_COMM_ID", "127.0.0.1:45646", 1);
  const auto wire = connect();
  EXPECT_STREQ(wire->name(), "neuron_collectives");
  EXPECT_EQ(warning_, "");
  EXPECT_TRUE(wire->close(kPatience));
}

/// On one rank it is not.
TEST_F(NeuronJob, DoesNoCollectivesWhereOneRankCannot) {
  const bool is_last = shared_mpi_session().rank().value() == shared_mpi_session().size() - 1;
  if (!is_last) ::setenv("NEURON_RT_ROOT_COMM_ID", "127.0.0.1:45646", 1);
  const auto wire = connect();
  EXPECT_STREQ(wire->name(), "neuron_send_receive");
  EXPECT_THAT(warning_, AllOf(HasSubstr("collectives of two cores did not work"),
                              HasSubstr("NEURON_RT_ROOT_COMM_ID is not set")));
  EXPECT_TRUE(wire->close(kPatience));
}

TEST_F(NeuronJob, SendsAndReceivesWhereThatWorks) {
  const auto wire = connect();
  EXPECT_STREQ(wire->name(), "neuron_send_receive");
  EXPECT_EQ(warning_, "");
  EXPECT_EQ(pool_.used(), 0U);
  EXPECT_TRUE(wire->close(kPatience));
}

/// On one rank it does not: all take the other path, and say why.
TEST_F(NeuronJob, GoesThroughHostsWhereOneRankCannotSendAndReceive) {
  const bool is_last = shared_mpi_session().rank().value() == shared_mpi_session().size() - 1;
  if (is_last) ::unsetenv("NEURON_RT_ASYNC_SENDRECV_EXPERIMENTAL_ENABLED");
  const auto wire = connect();
  EXPECT_STREQ(wire->name(), "neuron_staging");
  EXPECT_THAT(warning_,
              AllOf(HasSubstr("go through host memory"), HasSubstr("EXPERIMENTAL_ENABLED"),
                    HasSubstr("nrt_async_sendrecv_init")));
  EXPECT_TRUE(wire->close(kPatience));
}

}  // namespace neuron_mpi_test
}  // namespace smp::d2d
