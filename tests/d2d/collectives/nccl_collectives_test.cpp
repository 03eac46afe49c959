// Collectives over a played NCCL on played streams: results, what the streams wait for, and what
// memory may be used for again; the real NCCL, where there is one, is loaded and asked its version.
#include "d2d/collectives/nccl_collectives.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "d2d/collectives/fake_nccl.h"
#include "d2d/wire/simulated_job.h"
#include "d2d/wires/fake_cuda.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace nccl_collectives_test {

using testing::AllOf;
using testing::HasSubstr;

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

/// NCCL's, and keeps results: the host's memory is not used again in the order of streams, and
/// what is still on a stream would write to what is something else by then.
class KeepsResults final : public DeviceCollectives {
 public:
  KeepsResults(std::unique_ptr<NcclCollectives> nccl, std::vector<at::Tensor>& kept)
      : nccl_(std::move(nccl)), kept_(kept) {}
  const char* name() const noexcept override { return nccl_->name(); }
  c10::Device device() const noexcept override { return nccl_->device(); }
  std::string identity() override { return nccl_->identity(); }
  std::string make_id() override { return nccl_->make_id(); }
  void connect(const std::string& id, int position, int size) override {
    nccl_->connect(id, position, size);
  }
  bool connected() override { return nccl_->connected(); }
  bool takes(CollectiveKind kind, c10::ScalarType dtype) const noexcept override {
    return nccl_->takes(kind, dtype);
  }
  std::unique_ptr<DeviceCall> prepare(CollectiveKind kind, at::Tensor input,
                                      at::Tensor result) override {
    kept_.push_back(result);
    return nccl_->prepare(kind, std::move(input), std::move(result));
  }
  void close() noexcept override { nccl_->close(); }
  void abort() noexcept override { nccl_->abort(); }

 private:
  std::unique_ptr<NcclCollectives> nccl_;
  std::vector<at::Tensor>& kept_;
};

/// Ranks with a GPU each.
class Gpus {
 public:
  Gpus(int ranks, std::uint64_t seed)
      : cuda(std::make_shared<FakeCuda>(seed)),
        nccl(seed, cuda),
        job(std::make_unique<SimulatedJob>(ranks, seed)) {
    gpus_.resize(static_cast<std::size_t>(ranks));
  }
  ~Gpus() {
    if (cuda) cuda->finish();
    job.reset();
  }
  MakeDeviceCollectives end(int rank) {
    return [this, rank](c10::Device device) {
      auto gpu = std::make_unique<FakeCudaDevice>(cuda, rank);
      gpus_[static_cast<std::size_t>(rank)] = gpu.get();
      auto nccl = std::make_unique<NcclCollectives>(library_, std::move(gpu), device);
      return std::make_unique<KeepsResults>(std::move(nccl), kept);
    };
  }
  FakeCudaDevice& gpu(int rank) { return *gpus_[static_cast<std::size_t>(rank)]; }
  void connect() {
    std::vector<int> all;
    for (std::size_t rank = 0; rank < gpus_.size(); ++rank) all.push_back(static_cast<int>(rank));
    job->on_ranks(all, [&](int rank, Communicators& own) {
      own.use_devices(own.all(), end(rank), at::kCPU, /*required=*/true);
    });
  }

  std::vector<at::Tensor> kept;  // as long as streams
  std::shared_ptr<FakeCuda> cuda;
  FakeNccl nccl;
  std::unique_ptr<SimulatedJob> job;

 private:
  NcclLibrary library_ = FakeNccl::library();
  std::vector<FakeCudaDevice*> gpus_;
};

at::Tensor one_call(const Communicator& ranks, std::uint64_t kind, const at::Tensor& tensor) {
  if (kind == 0) return ranks.all_reduce(tensor);
  if (kind == 1) return ranks.reduce_scatter(tensor);
  if (kind == 2) return ranks.all_gather(tensor);
  return ranks.all_to_all(tensor);
}

/// Of `kind` among `ranks` ranks, each with its contribution.
at::Tensor expected(std::uint64_t kind, int rank, int ranks, at::IntArrayRef sizes,
                    c10::ScalarType dtype) {
  const auto rows = sizes[0] / ranks;
  std::vector<at::Tensor> parts;
  at::Tensor sum;
  for (int member = ranks - 1; member >= 0; --member) {
    const auto term = contribution(member, sizes, dtype);
    sum = sum.defined() ? sum + term : term;
    parts.insert(parts.begin(), kind == 3 ? term.narrow(0, rank * rows, rows) : term);
  }
  if (kind == 0) return sum;
  return kind == 1 ? sum.narrow(0, rank * rows, rows) : at::cat(parts);
}

constexpr std::uint64_t kLanes = 4;
constexpr int kRanks = 3;

struct Outcome {
  at::Tensor expected, copy;
};

/// Elements that are computed late, and whose memory is used for something else, in the order of
/// the same stream, as soon as the tensor is gone.
at::Tensor late_tensor(Gpus& gpus, int rank, const at::Tensor& source) {
  auto& gpu = gpus.gpu(rank);
  const auto memory = at::full_like(source, 77);
  const auto garbage = at::full_like(source, 99);
  gpus.kept.insert(gpus.kept.end(), {source, memory, garbage});
  auto* const stream = gpu.current_stream();
  gpu.copy(bytes_of(memory), bytes_of(source), source.nbytes(), stream);
  const auto use_again = [&gpu, stream, memory, garbage](void*) {
    gpu.copy(bytes_of(memory), bytes_of(garbage), garbage.nbytes(), stream);
  };
  return at::from_blob(memory.mutable_data_ptr(), source.sizes(), use_again, source.options());
}

/// Puts a copy of what `result` will be on the stream.
at::Tensor later_copy(FakeCudaDevice& gpu, const at::Tensor& result) {
  auto copy = at::empty_like(result);
  gpu.copy(bytes_of(copy), bytes_of(result), copy.nbytes(), gpu.current_stream());
  return copy;
}

void run_lane(Gpus& gpus, int rank, std::uint64_t lane, std::uint64_t seed,
              std::vector<Outcome>& outcomes) {
  std::mt19937_64 program(seed * 31 + lane);
  std::mt19937_64 pauses(seed * 1009 + lane * 17 + static_cast<std::uint64_t>(rank));
  const std::vector<c10::ScalarType> types{at::kFloat, at::kDouble, at::kLong, at::kBFloat16,
                                           at::kComplexFloat};
  for (int call = 0; call < 4; ++call) {
    fiber::Scheduler::instance().sleep_for(pauses() % 20'000, kForTheTest);
    const auto kind = program() % 4;
    const auto dtype = types[program() % types.size()];
    const std::vector<std::int64_t> sizes{kRanks * 2, static_cast<std::int64_t>(program() % 9 + 1)};
    const auto result = one_call(gpus.job->rank(rank).all().lane(lane), kind,
                                 late_tensor(gpus, rank, contribution(rank, sizes, dtype)));
    outcomes.push_back(
        {expected(kind, rank, kRanks, sizes, dtype), later_copy(gpus.gpu(rank), result)});
  }
}

/// NCCL wants to be asked while nothing else happens.
std::function<void()> until(const std::size_t& left) {
  return [&left] {
    while (left > 0) fiber::Scheduler::instance().sleep_for(1'000, kForTheTest);
  };
}

TEST(NcclCollectives, AreOrderedByStreamsAlone) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    std::vector<Outcome> outcomes;  // as long as streams
    Gpus gpus(kRanks, seed);
    gpus.connect();
    std::vector<std::function<void()>> fibers;
    std::size_t left = kRanks * kLanes;
    for (int rank = 0; rank < kRanks; ++rank) {
      for (std::uint64_t lane = 0; lane < kLanes; ++lane) {
        fibers.push_back([&, rank, lane] {
          run_lane(gpus, rank, lane, seed, outcomes);
          --left;
        });
      }
    }
    fibers.push_back(until(left));
    gpus.cuda->frozen = seed % 3 == 0;  // no host waits for a GPU
    gpus.job->run(fibers);
    gpus.cuda->frozen = false;
    gpus.cuda->finish();
    EXPECT_THAT(gpus.job->failures, testing::IsEmpty());
    EXPECT_EQ(gpus.nccl.kernels, kRanks * kLanes * 4);
    for (const auto& outcome : outcomes) {
      ASSERT_TRUE(at::equal(outcome.copy, outcome.expected)) << "seed " << seed;
    }
    gpus.job.reset();
    EXPECT_EQ(gpus.nccl.destroyed, kRanks);
    EXPECT_EQ(gpus.nccl.aborted, 0);
  }
}

/// Ranks that hear of the failure in time give up a call that others finish.
TEST(NcclCollectives, AreFinishedByRanksThatHaveGivenUpTheCall) {
  std::size_t finished = 0, given_up = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    std::vector<Outcome> outcomes;  // as long as streams
    Gpus gpus(kRanks, seed);
    gpus.connect();
    std::vector<std::function<void()>> fibers;
    std::size_t left = kRanks;
    for (int rank = 0; rank < kRanks; ++rank) {
      fibers.push_back([&, rank] {
        try {
          const auto lane = gpus.job->rank(rank).all().lane(1, /*epoch=*/1);
          const auto result =
              lane.all_reduce(late_tensor(gpus, rank, contribution(rank, {5}, at::kDouble)));
          outcomes.push_back(
              {expected(0, rank, kRanks, {5}, at::kDouble), later_copy(gpus.gpu(rank), result)});
        } catch (const PeerLostError&) {
          ++given_up;
        }
        --left;
      });
    }
    fibers.push_back([&] {
      fiber::Scheduler::instance().sleep_for(seed % 50 * 700, kForTheTest);
      auto& own = gpus.job->rank(1);
      own.fail_epoch(1, own.all().members(), "it is ill");
    });
    fibers.push_back(until(left));
    gpus.cuda->frozen = true;
    gpus.job->run(fibers);
    gpus.job->drain();
    gpus.job->run({[&] { fiber::Scheduler::instance().sleep_for(base::kSecond, kForTheTest); }});
    gpus.job->drain();
    gpus.cuda->frozen = false;
    gpus.cuda->finish();
    for (const auto& outcome : outcomes) {
      ASSERT_TRUE(at::equal(outcome.copy, outcome.expected)) << "seed " << seed;
    }
    if (outcomes.size() < kRanks) finished += outcomes.size();
  }
  EXPECT_GT(finished, 10U);
  EXPECT_GT(given_up, 10U);
}

TEST(NcclCollectives, TakeWhatNcclCanAddAndMoveAnything) {
  Gpus gpus(1, 1);
  const auto nccl = gpus.end(0)(at::kCPU);
  using Kind = CollectiveKind;
  EXPECT_TRUE(nccl->takes(Kind::kAllReduce, at::kHalf));
  EXPECT_TRUE(nccl->takes(Kind::kReduceScatter, at::kComplexDouble));
  EXPECT_FALSE(nccl->takes(Kind::kAllReduce, at::kShort));
  EXPECT_FALSE(nccl->takes(Kind::kReduceScatter, at::kShort));
  EXPECT_TRUE(nccl->takes(Kind::kTensorAllGather, at::kBool));
  EXPECT_TRUE(nccl->takes(Kind::kAllToAll, at::kShort));
}

TEST(NcclCollectives, ErrorsOfNcclEndTheRank) {
  Gpus gpus(2, 1);
  gpus.connect();
  gpus.nccl.failing_state = 6;
  gpus.job->on_ranks({0, 1}, [&](int rank, Communicators& own) {
    EXPECT_THAT(
        refusal<PeerLostError>([&] { own.all().all_reduce(at::ones({3})); }),
        AllOf(HasSubstr("rank " + std::to_string(rank)), HasSubstr("ranks {0, 1}"),
              HasSubstr("remote process exited"), HasSubstr("(6)"), HasSubstr("the cable is cut")));
  });
  EXPECT_EQ(gpus.nccl.aborted, 2);
}

TEST(NcclCollectives, ErrorsAfterALaunchEndTheRankAsWell) {
  Gpus gpus(2, 1);
  gpus.connect();
  // The memory is the played GPU's until its streams are done, as an allocator of GPUs has it.
  std::vector<at::Tensor> kept;
  gpus.job->on_ranks({0, 1}, [&](int, Communicators& own) {
    const auto ones = at::ones({3});
    const auto sum = own.all().all_reduce(ones);
    kept.insert(kept.end(), {ones, sum});
  });
  gpus.nccl.failing_state = 6;
  gpus.job->run({[] {
    for (int i = 0; i < 20; ++i) {
      fiber::Scheduler::instance().sleep_for(base::kMillisecond, kForTheTest);
    }
  }});
  EXPECT_EQ(gpus.nccl.aborted, 2);
}

TEST(NcclCollectives, AnOldNcclIsRefused) {
  Gpus gpus(1, 1);
  gpus.nccl.version = 21306;
  EXPECT_THAT(refusal<PeerLostError>([&] { gpus.end(0)(at::kCPU); }),
              AllOf(HasSubstr("NCCL 2.13.6"), HasSubstr("2.14.0 or newer")));
}

/// SMP_TEST_NCCL names a file that the loader does not find by itself.
TEST(NcclLibrary, TellsItsVersion) {
  const char* const file = std::getenv("SMP_TEST_NCCL");
  NcclLibrary library{};
  try {
    library = load_nccl(file != nullptr ? file : "libnccl.so.2");
  } catch (const PeerLostError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("NCCL"), HasSubstr("Debian: libnccl2"),
                                    HasSubstr("device_collectives = messages")));
    GTEST_SKIP() << error.what();
  }
  int version = 0;
  ASSERT_EQ(library.get_version(&version), NcclLibrary::kSuccess);
  EXPECT_GE(version, 21400);
  EXPECT_STRNE(library.error_string(6), "");
}

}  // namespace nccl_collectives_test
}  // namespace smp::d2d
