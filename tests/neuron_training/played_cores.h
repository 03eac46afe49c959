// neuron_training/played_cores.h: ranks of run_local that compute on the played device of tests,
// under the name "neuron", and whose tensors travel between cores of a played runtime.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/session/start.h"
#include "d2d/channel/route.h"
#include "d2d/wires/local/local_wire.h"
#include "d2d/wires/neuron/played_neuron.h"
#include "d2d/wires/neuron_paths/neuron_collective_wire.h"
#include "d2d/wires/neuron_paths/neuron_send_receive_wire.h"
#include "d2d/wires/neuron_paths/neuron_staging_wire.h"
#include "support/fake_device.h"

namespace smp::neuron_training {

/// kMixed: the first half of the ranks send and receive, the second does collectives, and between
/// the halves tensors go through hosts.
enum class Way : std::uint8_t { kCollectives, kSendReceive, kStaging, kMixed };
inline constexpr Way kWays[] = {Way::kCollectives, Way::kSendReceive, Way::kStaging, Way::kMixed};

inline void PrintTo(Way way, std::ostream* out) {
  static constexpr const char* kNames[] = {"collectives", "send and receive", "through hosts",
                                           "all of them"};
  *out << kNames[static_cast<int>(way)];
}

/// The memory of the played device, as a core's.
class DeviceAsNeuronPlaces final : public d2d::NeuronPlaces {
 public:
  DeviceAsNeuronPlaces(const d2d::PlayedNeuron& neuron, d2d::RelativeCore core)
      : tensor_(neuron.control().all_host_memory(core.value())), core_(core) {}
  std::optional<d2d::NeuronPlace> find(const std::byte* address) const override {
    const void* const real = support::host_view(address);
    if (real == address) return std::nullopt;
    const auto offset = reinterpret_cast<std::uintptr_t>(real);
    return d2d::NeuronPlace{tensor_, offset, SIZE_MAX - offset, core_};
  }

 private:
  d2d::NeuronLibrary::Tensor* tensor_;
  d2d::RelativeCore core_;
};

/// Another wire, whose runtime works while simulated time stands: no rank may take that for the end
/// of all there was to do. Counts what arrives.
class WorkingWire final : public d2d::Wire, private d2d::WireHandler {
 public:
  WorkingWire(std::unique_ptr<d2d::Wire> wire, const played::Counters& counters, int& arrived)
      : Wire(wire->rank(), wire->members()),
        wire_(std::move(wire)),
        counters_(counters),
        arrived_(arrived) {
    wire_->set_handler(this);
  }
  const char* name() const noexcept override { return wire_->name(); }
  bool reaches(d2d::MemoryKind kind) const noexcept override { return wire_->reaches(kind); }
  using Wire::reaches;
  d2d::BufferPool& buffers() noexcept override { return wire_->buffers(); }
  void post(GlobalRank peer, d2d::ByteBuffer&& bytes) override {
    wire_->post(peer, std::move(bytes));
  }
  void send(std::span<const std::byte> bytes, GlobalRank peer, d2d::TransferId id,
            d2d::Token token) override {
    wire_->send(bytes, peer, id, token);
  }
  void receive(std::span<std::byte> bytes, GlobalRank peer, d2d::TransferId id,
               d2d::Token token) override {
    wire_->receive(bytes, peer, id, token);
  }
  bool complete() override { return wire_->complete(); }
  bool poll() override { return wire_->poll() || counters_.requests > 0 || counters_.copies > 0; }
  bool drained() const noexcept override { return wire_->drained(); }
  bool leave() override { return wire_->leave(); }

 private:
  void on_control(GlobalRank source, d2d::ByteBuffer&& bytes) override {
    handler().on_control(source, std::move(bytes));
  }
  void on_sent(d2d::Token token) override { handler().on_sent(token); }
  void on_received(d2d::Token token) override {
    ++arrived_;
    handler().on_received(token);
  }

  std::unique_ptr<d2d::Wire> wire_;
  const played::Counters& counters_;
  int& arrived_;
};

/// The cores of all ranks, which one process has claimed.
class PlayedCores {
 public:
  PlayedCores(int ranks, Way way, int minor = 34)
      : ranks_(ranks),
        way_(way),
        neuron_(minor),
        runtime_(neuron_.library(), GlobalRank(0), neuron_.claim(ranks)),
        told_(std::make_shared<d2d::LocalHub>(ranks)),
        staged_(std::make_shared<d2d::LocalHub>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      places_.push_back(std::make_unique<DeviceAsNeuronPlaces>(neuron_, d2d::RelativeCore(rank)));
    }
  }
  ~PlayedCores() { neuron_.expect_empty(ranks_); }
  PlayedCores(const PlayedCores&) = delete;
  PlayedCores& operator=(const PlayedCores&) = delete;

  StartOptions options() {
    StartOptions options;
    options.routes = [this](const std::shared_ptr<d2d::LocalHub>& hub, GlobalRank rank) {
      return routes_of(hub, rank);
    };
    return options;
  }
  /// How many tensors came over the wires of these names.
  const std::map<std::string, int>& arrived() const { return arrived_; }

 private:
  d2d::Routes routes_of(const std::shared_ptr<d2d::LocalHub>& hub, GlobalRank rank) {
    std::vector<d2d::WireUse> uses;
    const bool is_mixed = way_ == Way::kMixed;
    const auto near = is_mixed ? half_of(rank) : d2d::Members::all(ranks_);
    const bool is_first = near.contain(GlobalRank(0));
    if (way_ == Way::kSendReceive || (is_mixed && is_first)) add(uses, send_receive(rank, near));
    if (way_ == Way::kCollectives || (is_mixed && !is_first)) add(uses, collectives(rank, near));
    if (way_ == Way::kStaging || is_mixed) add(uses, staging(rank));
    uses.push_back({std::make_unique<d2d::LocalWire>(hub, rank)});
    return d2d::Routes(std::move(uses));
  }
  d2d::Members half_of(GlobalRank rank) const {
    std::vector<GlobalRank> members;
    const int half = (ranks_ + 1) / 2;
    const int first = rank.value() / half * half;
    for (int i = first; i < std::min(first + half, ranks_); ++i) members.emplace_back(i);
    return d2d::Members(members);
  }
  void add(std::vector<d2d::WireUse>& uses, std::unique_ptr<d2d::Wire> wire) {
    auto& arrived = arrived_[wire->name()];
    uses.push_back({std::make_unique<WorkingWire>(std::move(wire), neuron_.counters(), arrived),
                    /*control=*/false});
  }
  std::unique_ptr<d2d::Wire> collectives(GlobalRank rank, const d2d::Members& members) {
    auto gathers = std::make_unique<d2d::NeuronGathers>(runtime_, d2d::RelativeCore(rank.value()),
                                                        4096, 60 * base::kSecond);
    gathers->join(rank.value(), ranks_);
    return std::make_unique<d2d::NeuronCollectiveWire>(
        std::make_unique<d2d::LocalWire>(told_, rank, members), std::move(gathers), places(rank));
  }
  std::unique_ptr<d2d::Wire> send_receive(GlobalRank rank, const d2d::Members& members) {
    std::vector<d2d::NeuronAddress> addresses;
    for (const GlobalRank member : members) {
      addresses.push_back(
          {"127.0.0.1", runtime_.claim().absolute(d2d::RelativeCore(member.value()))});
    }
    auto wire = std::make_unique<d2d::NeuronSendReceiveWire>(
        std::make_unique<d2d::LocalWire>(told_, rank, members),
        std::make_unique<d2d::NeuronSendReceive>(runtime_, d2d::RelativeCore(rank.value()),
                                                 members.size() - 1),
        places(rank));
    wire->connect(addresses);
    return wire;
  }
  std::unique_ptr<d2d::Wire> staging(GlobalRank rank) {
    return std::make_unique<d2d::NeuronStagingWire>(
        std::make_unique<d2d::LocalWire>(staged_, rank),
        std::make_unique<d2d::NeuronCopies>(runtime_, d2d::RelativeCore(rank.value())),
        places(rank), d2d::NeuronStagingOptions{.piece_bytes = 4096, .buffers = 2});
  }
  const d2d::NeuronPlaces& places(GlobalRank rank) const { return *places_[rank.index()]; }

  int ranks_;
  Way way_;
  d2d::PlayedNeuron neuron_;
  d2d::NeuronRuntime runtime_;
  std::shared_ptr<d2d::LocalHub> told_, staged_;  // without simulated delays
  std::vector<std::unique_ptr<DeviceAsNeuronPlaces>> places_;
  std::map<std::string, int> arrived_;
};

}  // namespace smp::neuron_training
