// Any call of the runtime fails, at random: all that is told to have arrived is right, an error
// says who, which call and what to do, and nothing hangs or is left behind. SMP_FUZZ_ROUNDS=5000
// tries 10,000 seeds.
#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "d2d/wire/damaged_bytes.h"
#include "d2d/wires/neuron/neuron_wire_cluster.h"
#include "d2d/wires/neuron_paths/neuron_collective_wire.h"
#include "d2d/wires/neuron_paths/neuron_send_receive_wire.h"
#include "d2d/wires/neuron_paths/neuron_staging_wire.h"
#include "smp/error.h"

namespace smp::d2d {
namespace neuron_faults_test {

using testing::AnyOf;
using testing::HasSubstr;

constexpr std::array kStatuses{1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 14, 101, 1003, 1100, 1203, 4711};

/// Three ranks that send each other tensors, with one fault.
class FaultyRound {
 public:
  explicit FaultyRound(std::uint64_t seed)
      : random_(seed), cores_(kPlayedReleases[random_() % std::size(kPlayedReleases)]) {
    auto& knobs = cores_.neuron.knobs();
    knobs.seed = seed;
    knobs.fail_status = kStatuses[random_() % kStatuses.size()];
    const auto when = static_cast<std::int64_t>(random_() % 400);
    if (random_() % 2 == 0) {
      knobs.fail_call = cores_.neuron.counters().calls + when;
    } else {
      knobs.fail_result = when % 40;
    }
  }
  /// The error; empty: all has arrived.
  std::string run() {
    try {
      make_wires();
      exchange();
    } catch (const PeerLostError& error) {
      return error.what();
    } catch (const ResourceError& error) {
      return error.what();
    }
    return "";
  }
  void expect_right() {
    for (auto& end : ends_) {
      for (const Token token : end->received) {
        EXPECT_EQ(transfers_[token].pattern().difference(transfers_[token].place.bytes()), "")
            << "transfer " << token;
      }
    }
    for (auto& transfer : transfers_) EXPECT_TRUE(transfer.place.intact());
  }
  void end() {
    ends_.clear();
    // A core that is lost takes no call by which something would end.
    if (cores_.neuron.knobs().fail_status == 101) return;
    // Nor is memory freed that a collective may still use, whose other side never came.
    if (cores_.neuron.counters().copies > 0) return;
    cores_.neuron.expect_empty(PlayedCores::kRanks);
  }

 private:
  struct Transfer {
    int from, to;
    std::size_t id;
    Bytes bytes;
    GuardedPlace place;
    WirePattern pattern() const { return {from, to, id}; }
  };
  static constexpr std::size_t kTransfers = 18;

  void make_wires() {
    const auto path = random_() % 3;
    std::vector<NeuronAddress> addresses;
    std::vector<NeuronSendReceiveWire*> connecting;
    for (int rank = 0; rank < PlayedCores::kRanks; ++rank) {
      auto messages = std::make_unique<LocalWire>(cores_.hub, GlobalRank(rank));
      const RelativeCore core(rank);
      const auto& places = *cores_.places[static_cast<std::size_t>(rank)];
      addresses.push_back({"127.0.0.1", cores_.runtime.claim().absolute(core)});
      if (path == 2) {
        auto gathers = std::make_unique<NeuronGathers>(cores_.runtime, core, 4096, base::kSecond);
        gathers->join(rank, PlayedCores::kRanks);
        ends_.push_back(std::make_unique<WireEnd>(std::make_unique<NeuronCollectiveWire>(
            std::move(messages), std::move(gathers), places)));
        continue;
      }
      if (path == 1) {
        ends_.push_back(std::make_unique<WireEnd>(std::make_unique<NeuronStagingWire>(
            std::move(messages), std::make_unique<NeuronCopies>(cores_.runtime, core), places,
            NeuronStagingOptions{.piece_bytes = 4096, .buffers = 2})));
        continue;
      }
      auto wire = std::make_unique<NeuronSendReceiveWire>(
          std::move(messages),
          std::make_unique<NeuronSendReceive>(cores_.runtime, core, PlayedCores::kRanks - 1),
          places);
      connecting.push_back(wire.get());
      ends_.push_back(std::make_unique<WireEnd>(std::move(wire)));
    }
    for (auto* const wire : connecting) wire->connect(addresses);
  }

  void exchange() {
    transfers_.reserve(kTransfers);
    for (std::size_t i = 0; i < kTransfers; ++i) {
      const int from = static_cast<int>(random_() % 3), to = (from + 1 + random_() % 2) % 3;
      const std::size_t size = 1 + random_() % 20'000;
      transfers_.push_back({from, to, i, {}, GuardedPlace(size)});
      transfers_.back().bytes = transfers_.back().pattern().bytes(size);
      ends_[static_cast<std::size_t>(from)]->wire().send(transfers_.back().bytes, GlobalRank(to), i,
                                                         i);
      ends_[static_cast<std::size_t>(to)]->wire().receive(transfers_.back().place.bytes(),
                                                          GlobalRank(from), i, i);
    }
    const base::SteadyClock clock;
    const auto late = clock.now() + 20 * base::kSecond;
    const auto all = [&](auto member) {
      std::size_t told = 0;
      for (auto& end : ends_) told += ((*end).*member).size();
      return told == kTransfers;
    };
    while (!all(&WireEnd::sent) || !all(&WireEnd::received)) {
      SMP_ASSERT(clock.now() < late, "nothing ends");
      for (auto& end : ends_) end->wire().poll();
    }
  }

  std::mt19937_64 random_;
  PlayedCores cores_;
  std::vector<Transfer> transfers_;
  std::vector<std::unique_ptr<WireEnd>> ends_;
};

TEST(NeuronFaults, EndAsTheyShould) {
  int told = 0;
  const int rounds = fuzz_rounds(200);
  for (int seed = 0; seed < rounds; ++seed) {
    FaultyRound round(static_cast<std::uint64_t>(seed));
    const auto text = round.run();
    round.expect_right();
    round.end();
    if (text.empty()) continue;
    ++told;
    EXPECT_THAT(text, HasSubstr("Neuron core")) << "seed " << seed;
    EXPECT_THAT(text, AnyOf(HasSubstr("; "), HasSubstr(": "))) << "seed " << seed;
    EXPECT_THAT(text, HasSubstr("returned ")) << "seed " << seed;
  }
  EXPECT_GT(told, rounds / 3);
  EXPECT_LT(told, rounds) << "some go well";
}

}  // namespace neuron_faults_test
}  // namespace smp::d2d
