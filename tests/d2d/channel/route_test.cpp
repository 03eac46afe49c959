// Which wire is chosen for whom, and which choices are refused.
#include "d2d/channel/route.h"

#include <gmock/gmock.h>

#include "d2d/wires/local/local_wire.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Members members_of(const std::vector<int>& numbers) {
  std::vector<GlobalRank> members;
  for (const int number : numbers) members.emplace_back(number);
  return Members(members);
}

/// Of rank 0; moves nothing.
class FakeWire final : public Wire {
 public:
  FakeWire(const char* name, const std::vector<int>& members, std::vector<MemoryKind> kinds)
      : Wire(GlobalRank(0), members_of(members)), name_(name), kinds_(std::move(kinds)) {}
  ~FakeWire() override { ended_.push_back(name_); }
  FakeWire(const FakeWire&) = delete;
  FakeWire& operator=(const FakeWire&) = delete;
  using Wire::reaches;
  const char* name() const noexcept override { return name_; }
  bool reaches(MemoryKind kind) const noexcept override {
    return std::find(kinds_.begin(), kinds_.end(), kind) != kinds_.end();
  }
  BufferPool& buffers() noexcept override { return buffers_; }
  void post(GlobalRank, ByteBuffer&&) override {}
  void send(std::span<const std::byte>, GlobalRank, TransferId, Token) override {}
  void receive(std::span<std::byte>, GlobalRank, TransferId, Token) override {}
  bool complete() override { return false; }
  bool poll() override {
    polled_.push_back(name_);
    return false;
  }
  bool drained() const noexcept override { return true; }
  bool leave() override { return true; }

  static std::vector<std::string> take_polled() { return std::exchange(polled_, {}); }
  static std::vector<std::string> take_ended() { return std::exchange(ended_, {}); }

 private:
  static inline std::vector<std::string> polled_, ended_;  // in turn, of all wires
  const char* name_;
  std::vector<MemoryKind> kinds_;
  BufferPool buffers_;
};

WireUse use(const char* name, const std::vector<int>& members, std::vector<MemoryKind> kinds,
            bool control = true, bool data = true) {
  return {std::make_unique<FakeWire>(name, members, std::move(kinds)), control, data};
}

// Shared memory to rank 1, device memory to ranks 1 and 2, everything else over MPI.
Routes three_wires() {
  std::vector<WireUse> uses;
  uses.push_back(use("shm", {1, 0}, {MemoryKind::kHost}, /*control=*/false));
  uses.push_back(use("ipc", {0, 1, 2}, {MemoryKind::kCuda}, /*control=*/false));
  uses.push_back(use("mpi", {0, 1, 2, 3}, {MemoryKind::kHost}));
  return Routes(std::move(uses));
}

/// Later wires may use what earlier ones have.
TEST(Routes, EndTheirWiresLastFirst) {
  auto routes = std::make_unique<Routes>(three_wires());
  FakeWire::take_ended();
  routes.reset();
  EXPECT_THAT(FakeWire::take_ended(), testing::ElementsAre("mpi", "ipc", "shm"));
}

TEST(Routes, TakeTheFirstWireThatMayAndCan) {
  const Routes routes = three_wires();
  for (int peer = 1; peer < 4; ++peer) {
    EXPECT_STREQ(routes.control(GlobalRank(peer)).name(), "mpi") << peer;
  }
  EXPECT_EQ(routes.data(GlobalRank(1), MemoryKind::kHost), 0);
  EXPECT_EQ(routes.data(GlobalRank(2), MemoryKind::kHost), 2);
  EXPECT_EQ(routes.data(GlobalRank(1), MemoryKind::kCuda), 1);
  EXPECT_EQ(routes.data(GlobalRank(2), MemoryKind::kCuda), 1);
  EXPECT_EQ(routes.data(GlobalRank(3), MemoryKind::kCuda), kNoWire);
}

TEST(Routes, PollOnlyTheWiresThatSomeRowNames) {
  FakeWire::take_polled();
  three_wires().wires().poll();
  EXPECT_EQ(FakeWire::take_polled(), (std::vector<std::string>{"shm", "ipc", "mpi"}));
  std::vector<WireUse> uses;
  uses.push_back(use("shm", {1, 0}, {MemoryKind::kHost}));
  uses.push_back(use("mpi", {0, 1}, {MemoryKind::kHost}));
  Routes routes(std::move(uses));
  routes.wires().poll();
  EXPECT_EQ(FakeWire::take_polled(), std::vector<std::string>{"shm"});
  EXPECT_TRUE(routes.wires().leave());
}

TEST(Routes, ReachWhatAnyWireReaches) {
  const Routes routes = three_wires();
  EXPECT_EQ(routes.rank(), GlobalRank(0));
  EXPECT_EQ(routes.members(), members_of({1, 0, 2, 3}));
  EXPECT_TRUE(routes.reaches(GlobalRank(3)));
  EXPECT_FALSE(routes.reaches(GlobalRank(0)));
  EXPECT_FALSE(routes.reaches(GlobalRank(4)));
  EXPECT_FALSE(routes.reaches(GlobalRank()));
}

TEST(Routes, PrintAsATableWithALineForEachPeer) {
  EXPECT_EQ(three_wires().path(GlobalRank(1)), "mpi, tensors over shm");
  EXPECT_EQ(three_wires().path(GlobalRank(2)), "mpi");
  EXPECT_EQ(three_wires().path(GlobalRank(1), MemoryKind::kCuda), "mpi, tensors over ipc");
  EXPECT_EQ(three_wires().path(GlobalRank(3), MemoryKind::kCuda),
            "mpi, tensors through host memory");
  EXPECT_EQ(three_wires().table(),
            "rank 0 to  control  host data  cuda data  neuron data\n"
            "1  mpi 2  shm 0  ipc 1  -\n"
            "2  mpi 2  mpi 2  ipc 1  -\n"
            "3  mpi 2  mpi 2  -  -");
}

TEST(Routes, NamePeersOfOnePathTogether) {
  using Paths = std::vector<std::pair<std::string, std::vector<GlobalRank>>>;
  const GlobalRank one(1), two(2), three(3);
  EXPECT_EQ(three_wires().paths(),
            (Paths{{"mpi, tensors over shm", {one}}, {"mpi", {two, three}}}));
  EXPECT_EQ(three_wires().paths(MemoryKind::kCuda),
            (Paths{{"mpi, tensors over ipc", {one, two}},
                   {"mpi, tensors through host memory", {three}}}));
}

TEST(Routes, RefuseToLeaveAPeerWithoutAPlane) {
  const auto connect = [](bool control, bool data) {
    return refusal([&] {
      std::vector<WireUse> uses;
      uses.push_back(use("half", {0, 1}, {MemoryKind::kHost}));
      uses.push_back(use("mpi", {0, 1, 2}, {MemoryKind::kHost}, control, data));
      Routes routes(std::move(uses));
    });
  };
  EXPECT_EQ(connect(true, true), "accepted");
  EXPECT_THAT(connect(true, false), AllOf(HasSubstr("rank 2"), HasSubstr("2  mpi 1  -  -")));
  EXPECT_THAT(connect(false, true), AllOf(HasSubstr("rank 2"), HasSubstr("2  -  mpi 1  -")));
  EXPECT_THROW(Routes(std::vector<WireUse>()), UsageError);
}

TEST(Routes, RefuseWiresOfDifferentRanks) {
  const auto hub = std::make_shared<LocalHub>(2);
  std::vector<WireUse> uses;
  uses.push_back({std::make_unique<LocalWire>(hub, GlobalRank(0))});
  uses.push_back({std::make_unique<LocalWire>(hub, GlobalRank(1))});
  EXPECT_THAT(refusal([&] { Routes routes(std::move(uses)); }),
              AllOf(HasSubstr("rank 1"), HasSubstr("rank 0")));
}

}  // namespace
}  // namespace smp::d2d
