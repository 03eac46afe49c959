// d2d/wires/cuda_ipc_wire_test.cpp: wires between GPUs keep the contract of wires whatever the
// order in which streams do their work; here a GPU is played (d2d/wires/fake_cuda.h).
#include "d2d/wires/cuda/cuda_ipc_wire.h"

#include "d2d/wire/wire_contract.h"
#include "d2d/wire/wire_probe.h"
#include "d2d/wires/fake_cuda.h"
#include "d2d/wires/local/local_wire.h"
#include "d2d/wires/shm/host_shm_wire.h"
#include "fiber/sim_clock.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace cuda_ipc_wire_test {

using testing::HasSubstr;

struct World {
  /// @param gpus  of the machine, dealt to the ranks in turn
  World(LocalOptions local, std::uint64_t seed, const CudaIpcOptions& cuda_options, int size,
        int gpus = 100)
      : hub(std::make_shared<LocalHub>(size, local)),
        cuda(std::make_shared<FakeCuda>(seed)),
        options(cuda_options) {
    cuda->shares_events = options.shared_events;
    std::vector<std::string> offers, identities;
    for (int rank = 0; rank < size; ++rank) identities.push_back(std::to_string(rank % gpus));
    for (int rank = 0; rank < size; ++rank) {
      auto device = std::make_unique<FakeCudaDevice>(cuda, rank % gpus);
      devices.push_back(device.get());
      wires.push_back(
          std::make_unique<CudaIpcWire>(std::make_unique<LocalWire>(hub, GlobalRank(rank)),
                                        std::move(device), identities, options));
      offers.push_back(wires.back()->offer());
    }
    for (auto& wire : wires) wire->connect(offers);
  }

  std::shared_ptr<LocalHub> hub;
  std::shared_ptr<FakeCuda> cuda;
  CudaIpcOptions options;
  std::vector<FakeCudaDevice*> devices;
  std::vector<std::unique_ptr<CudaIpcWire>> wires;
};

/// A local wire that is left hears nothing more: what was lent has come back before.
template <class Advance>
void leave_together(std::vector<std::unique_ptr<WireEnd>>& ends, const Advance& advance) {
  for (int i = 0; i < 100; ++i) advance();
  for (auto& end : ends) EXPECT_TRUE(end->wire().close(base::kSecond));
}

struct Clock {
  fiber::SimClock clock{7};
};

class CudaIpcWires : private Clock, public WireCluster {
 public:
  explicit CudaIpcWires(const CudaIpcOptions& options = {}, bool simulated = false, int gpus = 100)
      : edges_{options.page_bytes, options.piece_pages * options.page_bytes},
        world_({.clock = simulated ? &clock : nullptr}, 11, options, 3, gpus),
        simulated_(simulated) {
    for (auto& wire : world_.wires) ends_.push_back(std::make_unique<WireEnd>(std::move(wire)));
  }
  ~CudaIpcWires() override {
    world_.cuda->finish();
    leave_together(ends_, [this] { advance(); });
    ends_.clear();
    EXPECT_EQ(world_.cuda.use_count(), 1) << "what was left in order is freed";
  }
  MemoryKind kind() const override { return MemoryKind::kCuda; }
  /// Of a page, and of the longest piece.
  std::vector<std::size_t> edges() const override { return edges_; }

 protected:
  void advance() override {
    if (simulated_) clock.advance();
    world_.cuda->work();
    WireCluster::advance();
  }
  void settle() override { world_.cuda->finish(); }

 private:
  std::vector<std::size_t> edges_;
  World world_;
  bool simulated_;
};

constexpr CudaIpcOptions kScarce{.page_bytes = 4096, .pages = 3, .piece_pages = 2, .events = 3};
struct ScarceCudaIpcWires : CudaIpcWires {
  ScarceCudaIpcWires() : CudaIpcWires(kScarce) {}
};
struct DelayedCudaIpcWires : CudaIpcWires {
  DelayedCudaIpcWires() : CudaIpcWires(kScarce, /*simulated=*/true) {}
};
struct CudaIpcWiresWithOwnEvents : CudaIpcWires {
  CudaIpcWiresWithOwnEvents() : CudaIpcWires({.shared_events = false}) {}
};
/// Ranks 0 and 2 share one.
struct CudaIpcWiresOfTwoGpus : CudaIpcWires {
  CudaIpcWiresOfTwoGpus() : CudaIpcWires(kScarce, /*simulated=*/false, 2) {}
};
struct ScarceCudaIpcWiresWithOwnEvents : CudaIpcWires {
  ScarceCudaIpcWiresWithOwnEvents()
      : CudaIpcWires({.page_bytes = 4096,
                      .pages = 3,
                      .piece_pages = 2,
                      .events = 3,
                      .shared_events = false}) {}
};

using AllCudaIpcWires = testing::Types<CudaIpcWires, ScarceCudaIpcWires, DelayedCudaIpcWires,
                                       CudaIpcWiresWithOwnEvents, ScarceCudaIpcWiresWithOwnEvents>;
INSTANTIATE_TYPED_TEST_SUITE_P(cuda_ipc_wire_test, WireContract, AllCudaIpcWires);

/// Two ranks whose streams compute what is sent, and read what came: what the contract of wires,
/// which knows no streams, cannot ask for.
class Pair {
 public:
  Pair(std::uint64_t seed, const CudaIpcOptions& options, int gpus = 2)
      : world_({}, seed, options, 2, gpus) {
    for (auto& wire : world_.wires) ends_.push_back(std::make_unique<WireEnd>(std::move(wire)));
  }
  ~Pair() {
    world_.cuda->finish();
    leave_together(ends_, [this] { poll(); });
    ends_.clear();
    EXPECT_EQ(world_.cuda.use_count(), 1) << "what was left in order is freed";
  }
  WireEnd& end(int rank) { return *ends_[static_cast<std::size_t>(rank)]; }
  FakeCudaDevice& device(int rank) { return *world_.devices[static_cast<std::size_t>(rank)]; }
  FakeCuda& cuda() { return *world_.cuda; }
  /// As a kernel does: when it is its turn on LibTorch's stream.
  void compute(int rank, std::byte* to, const std::byte* from, std::size_t bytes) {
    device(rank).copy(to, from, bytes, device(rank).current_stream());
  }
  void poll() {
    for (auto& end : ends_) end->wire().poll();
  }

 private:
  World world_;
  std::vector<std::unique_ptr<WireEnd>> ends_;
};

constexpr CudaIpcOptions kSmall{.page_bytes = 1024, .pages = 8, .piece_pages = 4, .events = 4};

void send_what_is_computed(std::uint64_t seed, const CudaIpcOptions& options, int gpus) {
  Pair pair(seed, options, gpus);
  const GlobalRank zero(0), one(1);
  std::mt19937_64 random(seed);
  constexpr std::size_t kTransfers = 12;
  std::vector<Bytes> values, sources, places, results;
  for (std::size_t i = 0; i < kTransfers; ++i) {
    const auto size = 1 + random() % 9000;
    values.push_back(random_bytes(size, seed * 100 + i));
    sources.emplace_back(size);
    places.emplace_back(size);
    results.emplace_back(size);
  }
  const Bytes nothing(10'000);
  std::size_t sent = 0, used = 0;
  for (std::size_t i = 0; i < kTransfers; ++i) {
    pair.end(1).wire().receive(places[i], zero, i, i);
  }
  const auto step = [&] {
    if (sent < kTransfers && random() % 3 == 0) {  // computed on the stream, and sent at once
      pair.compute(0, sources[sent].data(), values[sent].data(), values[sent].size());
      pair.end(0).wire().send(sources[sent], one, sent, sent);
      ++sent;
    }
    // What is reported may be overwritten by what the stream does next.
    for (const auto token : std::exchange(pair.end(0).sent, {})) {
      pair.compute(0, sources[token].data(), nothing.data(), sources[token].size());
    }
    for (const auto token : std::exchange(pair.end(1).received, {})) {
      pair.compute(1, results[token].data(), places[token].data(), places[token].size());
      ++used;
    }
    pair.end(0).wire().poll();
    if (random() % 4 == 0) pair.end(0).wire().complete();
    pair.end(1).wire().poll();
  };
  const base::SteadyClock clock;
  const auto deadline = clock.now() + 20 * base::kSecond;
  while (used < kTransfers || !pair.end(0).wire().drained() || !pair.end(1).wire().drained()) {
    ASSERT_LT(clock.now(), deadline) << "seed " << seed;
    step();
  }
  step();
  pair.cuda().finish();
  for (std::size_t i = 0; i < kTransfers; ++i) {
    ASSERT_EQ(results[i], values[i]) << "transfer " << i << ", seed " << seed;
  }
}

TEST(CudaIpcWire, OrdersComputingSendingAndUsingWithoutAnybodyWaiting) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    send_what_is_computed(seed, kSmall, 2);
    send_what_is_computed(seed, kSmall, 1);
    auto own_events = kSmall;
    own_events.shared_events = false;
    send_what_is_computed(seed, own_events, 2);
  }
}

// With the GPU behind, transfers are complete for the host.
TEST(CudaIpcWire, IsReceivedBeforeTheGpuHasTheBytes) {
  Pair pair(1, {});
  const auto value = random_bytes(5'000, 1);
  Bytes place(value.size());
  pair.cuda().frozen = true;
  pair.end(1).wire().receive(place, GlobalRank(0), 1, 1);
  pair.end(0).wire().send(value, GlobalRank(1), 1, 1);
  for (int i = 0; i < 3 && pair.end(1).received.empty(); ++i) pair.poll();
  EXPECT_THAT(pair.end(1).received, testing::ElementsAre(1U));
  EXPECT_THAT(pair.end(0).sent, testing::IsEmpty());
  EXPECT_EQ(place, Bytes(value.size()));
  pair.cuda().frozen = false;
  while (!pair.end(0).wire().drained() || !pair.end(1).wire().drained()) pair.poll();
  EXPECT_EQ(place, value);
}

/// Processes of one GPU take turns: nobody's stream may wait for another's.
TEST(CudaIpcWire, OnOneGpuIsReceivedOnceTheBytesAreThere) {
  Pair pair(1, {}, /*gpus=*/1);
  const auto value = random_bytes(5'000, 1);
  Bytes place(value.size());
  pair.cuda().frozen = true;
  pair.end(1).wire().receive(place, GlobalRank(0), 1, 1);
  pair.end(0).wire().send(value, GlobalRank(1), 1, 1);
  for (int i = 0; i < 10; ++i) pair.poll();
  EXPECT_THAT(pair.end(1).received, testing::IsEmpty());
  pair.cuda().frozen = false;
  while (!pair.end(0).wire().drained() || !pair.end(1).wire().drained()) pair.poll();
  EXPECT_THAT(pair.end(1).received, testing::ElementsAre(1U));
  EXPECT_EQ(place, value);
}

TEST(CudaIpcWire, ReceivesOnTheStreamThatWasCurrentWhenThePlaceWasNamed) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Pair pair(seed, kSmall);
    const auto value = random_bytes(700, 1), old = random_bytes(700, 2);
    Bytes place(value.size());
    auto* const first = pair.device(1).current_stream();
    // The place was used before, by work that is still on the stream it was set aside on.
    pair.cuda().frozen = true;
    pair.compute(1, place.data(), old.data(), old.size());
    pair.end(1).wire().receive(place, GlobalRank(0), 1, 1);
    pair.device(1).set_current_stream(pair.device(1).make_stream());
    pair.end(0).wire().send(value, GlobalRank(1), 1, 1);
    while (pair.end(1).received.empty()) pair.poll();
    pair.cuda().frozen = false;
    while (!pair.end(0).wire().drained() || !pair.end(1).wire().drained()) pair.poll();
    pair.cuda().finish();
    ASSERT_EQ(place, value) << "seed " << seed;
    pair.device(1).set_current_stream(first);
  }
}

/// As in a job, where leaving is a meeting.
std::vector<std::unique_ptr<Wire>> two_ends_of_shared_memory() {
  const HostShmOptions options{.blocks = 1};
  const auto bytes = HostShmSegment::bytes_for(2, options);
  std::vector<base::SharedMemory> owned;
  for (int i = 0; i < 2; ++i) owned.push_back(*base::SharedMemory::make(bytes));
  std::vector<std::unique_ptr<Wire>> wires;
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<base::SharedMemory> mapped;
    for (const auto& each : owned) {
      mapped.push_back(*base::SharedMemory::open(each.address(), bytes));
    }
    wires.push_back(std::make_unique<HostShmWire>(GlobalRank(rank), Members::all(2),
                                                  std::move(mapped), options));
  }
  return wires;
}

/// Two ranks of a machine with two GPUs.
struct MachineOfTwo {
  MachineOfTwo()
      : messages(two_ends_of_shared_memory()),
        zero(std::move(messages[0]), std::make_unique<FakeCudaDevice>(cuda, 0), gpus, kSmall),
        one(std::move(messages[1]), std::make_unique<FakeCudaDevice>(cuda, 1), gpus, kSmall) {
    const std::vector<std::string> offers{zero.offer(), one.offer()};
    zero.connect(offers);
    one.connect(offers);
  }
  /// @return whether both have left within `rounds`
  bool leave(int rounds) {
    bool left_zero = false, left_one = false;
    for (int i = 0; i < rounds && !(left_zero && left_one); ++i) {
      zero.poll();
      one.poll();
      left_zero = zero.leave();
      left_one = one.leave();
    }
    return left_zero && left_one;
  }

  std::shared_ptr<FakeCuda> cuda = std::make_shared<FakeCuda>(1);
  std::vector<std::string> gpus{"0", "1"};
  std::vector<std::unique_ptr<Wire>> messages;
  CudaIpcWire zero, one;
};

/// Ranks leave one after the other, and what the last ones send arrives.
TEST(CudaIpcWire, StillReceivesWhenItHasBegunToLeave) {
  MachineOfTwo machine;
  const auto value = random_bytes(9'000, 1);
  Bytes place(value.size());
  EXPECT_FALSE(machine.one.leave()) << "rank 0 has not come";
  machine.one.receive(place, GlobalRank(0), 1, 1);
  machine.zero.send(value, GlobalRank(1), 1, 1);
  EXPECT_TRUE(machine.leave(10'000));
  machine.cuda->finish();
  EXPECT_EQ(place, value);
}

/// What complete() told may still be under way: memory and events stay until it is done.
TEST(CudaIpcWire, IsNotLeftBeforeItsCopiesAreDone) {
  MachineOfTwo machine;
  const auto value = random_bytes(900, 1);
  Bytes place(value.size());
  machine.cuda->frozen = true;
  machine.one.receive(place, GlobalRank(0), 1, 1);
  machine.zero.send(value, GlobalRank(1), 1, 1);
  EXPECT_TRUE(machine.zero.complete());
  EXPECT_FALSE(machine.leave(100)) << "the GPU has done nothing";
  machine.cuda->frozen = false;
  EXPECT_TRUE(machine.leave(10'000));
  EXPECT_EQ(place, value);
}

/// As where the kernel lets no events pass between processes: what was set aside goes back.
TEST(CudaIpcWire, LeavesNothingBehindWhenItCannotBeMade) {
  auto cuda = std::make_shared<FakeCuda>(1);
  cuda->shares_events = false;
  const auto hub = std::make_shared<LocalHub>(2);
  EXPECT_THAT(refusal<PeerLostError>([&] {
                CudaIpcWire(std::make_unique<LocalWire>(hub, GlobalRank(0)),
                            std::make_unique<FakeCudaDevice>(cuda), {"0", "1"});
              }),
              HasSubstr("cuEventCreate"));
  EXPECT_EQ(cuda.use_count(), 1);
}

TEST(CudaIpcWire, SaysWhenAGpuCannotBeReached) {
  auto cuda = std::make_shared<FakeCuda>(1);
  cuda->shares_memory = false;
  const auto hub = std::make_shared<LocalHub>(2);
  const std::vector<std::string> gpus{"0", "1"};
  CudaIpcWire zero(std::make_unique<LocalWire>(hub, GlobalRank(0)),
                   std::make_unique<FakeCudaDevice>(cuda, 0), gpus);
  CudaIpcWire one(std::make_unique<LocalWire>(hub, GlobalRank(1)),
                  std::make_unique<FakeCudaDevice>(cuda, 1), gpus);
  EXPECT_THAT(refusal<PeerLostError>([&] {
                zero.connect({zero.offer(), one.offer()});
              }),
              HasSubstr("cuIpcOpenMemHandle"));
  EXPECT_THAT(refusal<PeerLostError>([&] {
                zero.connect({zero.offer(), "short"});
              }),
              HasSubstr("rank 1 offers 5 bytes"));
}

TEST(CudaIpcWire, RefusesAMessageThatMakesNoSense) {
  const auto hub = std::make_shared<LocalHub>(2);
  auto cuda = std::make_shared<FakeCuda>(1);
  LocalWire other(hub, GlobalRank(1));
  CudaIpcWire wire(std::make_unique<LocalWire>(hub, GlobalRank(0)),
                   std::make_unique<FakeCudaDevice>(cuda), {"0", "0"});
  for (const std::size_t size : {std::size_t{2}, std::size_t{36}, std::size_t{40}}) {
    ByteBuffer bytes = other.buffers().take();
    bytes.resize(size);
    std::memset(bytes.data(), 0xff, size);
    other.post(GlobalRank(0), std::move(bytes));
    EXPECT_THROW(wire.poll(), InternalError) << size;
  }
}

}  // namespace cuda_ipc_wire_test
}  // namespace smp::d2d
