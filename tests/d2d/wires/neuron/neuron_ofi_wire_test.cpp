// Tensors of cores over libfabric keep the contract of wires: over TCP, for which memory of a
// played core is registered as that of a host. What EFA does with it was never seen.
#include "d2d/wires/neuron_paths/neuron_ofi_wire.h"

#include <gmock/gmock.h>
#include <rdma/fi_domain.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "d2d/wire/network_wire_contract.h"
#include "d2d/wires/neuron/neuron_pool.h"
#include "d2d/wires/neuron/neuron_wire_cluster.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace neuron_ofi_wire_test {

using testing::HasSubstr;

/// A registration that the driver of the played core knows of.
struct AttachedRegion : fid_mr {
  fid_mr* real = nullptr;
  void* address = nullptr;
  void (*detach)(void*) = nullptr;
};

int close_attached(fid* handle) {
  auto* const region = reinterpret_cast<AttachedRegion*>(handle);
  ::fi_close(&region->real->fid);
  region->detach(region->address);
  delete region;
  return 0;
}

/// Does what libfabric does with FI_HMEM_NEURON, as far as a program can see it.
class PlayedEndpoint final : public NeuronEndpoint {
 public:
  PlayedEndpoint(NeuronRuntime& runtime, const NeuronPlaces& places, const PlayedNeuron& neuron)
      : NeuronEndpoint(runtime, places, OfiEndpointOptions{}), neuron_(neuron) {}

 protected:
  OfiMemory register_tensor(std::span<std::byte> bytes) override {
    const auto& driver = neuron_.control();
    const int refused = driver.attach(bytes.data(), bytes.size());
    SMP_REQUIRE_AS(PeerLostError, refused == 0, "the driver says ", refused);
    auto host = OfiEndpoint::register_target(bytes);
    static fi_ops ops{sizeof(fi_ops), &close_attached, nullptr, nullptr, nullptr, nullptr, nullptr};
    auto* const region = new AttachedRegion;
    region->real = host.release();
    static_cast<fid_mr&>(*region) = *region->real;
    region->fid.ops = &ops;
    region->address = bytes.data();
    region->detach = driver.detach;
    return {OfiHandle<fid_mr>(region), host.address()};
  }

 private:
  const PlayedNeuron& neuron_;
};

struct Parts {
  std::unique_ptr<PlayedEndpoint> endpoint;
  const NeuronPlaces* places;
};

std::vector<std::unique_ptr<Wire>> connect(std::vector<Parts> parts) {
  std::vector<std::string> addresses;
  for (const auto& each : parts) addresses.push_back(each.endpoint->address());
  const auto members = Members::all(static_cast<int>(parts.size()));
  std::vector<std::unique_ptr<Wire>> wires;
  for (auto& [endpoint, places] : parts) {
    auto& memory = *endpoint;
    const GlobalRank rank(static_cast<int>(wires.size()));
    wires.push_back(std::make_unique<NeuronOfiWire>(
        std::make_unique<OfiWire>(rank, members, std::move(endpoint), addresses), memory, *places));
  }
  return wires;
}

/// All of the host's memory but its first pages, since an address 0 is none. That of each core
/// begins elsewhere, so that the driver tells them apart.
class HostFromAPageOn final : public NeuronPlaces {
 public:
  HostFromAPageOn(const PlayedNeuron& neuron, NeuronRuntime& runtime, RelativeCore core)
      : runtime_(runtime),
        core_(core),
        start_(4096 * (1 + static_cast<std::size_t>(core.value()))) {
    runtime.library().tensor_allocate_slice(neuron.control().all_host_memory(core.value()), start_,
                                            kEnd - start_, "", &tensor_);
  }
  ~HostFromAPageOn() override { runtime_.library().tensor_free(&tensor_); }
  std::optional<NeuronPlace> find(const std::byte* address) const override {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    return NeuronPlace{tensor_, at - start_, kEnd - at, core_};
  }

 private:
  static constexpr std::size_t kEnd = std::size_t{1} << 47;
  NeuronRuntime& runtime_;
  RelativeCore core_;
  std::size_t start_;
  NeuronLibrary::Tensor* tensor_ = nullptr;
};

class OfiWiresOfCores : public WireCluster {
 public:
  static constexpr int kRanks = 3;
  OfiWiresOfCores() {
    neuron_.knobs().gives_addresses = true;
    std::vector<Parts> parts;
    for (int rank = 0; rank < kRanks; ++rank) {
      places_.push_back(std::make_unique<HostFromAPageOn>(neuron_, runtime_, RelativeCore(rank)));
      parts.push_back({std::make_unique<PlayedEndpoint>(runtime_, *places_.back(), neuron_),
                       places_.back().get()});
    }
    for (auto& wire : connect(std::move(parts))) {
      ends_.push_back(std::make_unique<WireEnd>(std::move(wire)));
    }
  }
  ~OfiWiresOfCores() override {
    std::vector<Wire*> wires;
    for (auto& end : ends_) wires.push_back(&end->wire());
    EXPECT_TRUE(leave_all(wires));
    ends_.clear();
    EXPECT_EQ(neuron_.counters().attached, 0);
    EXPECT_LE(neuron_.counters().attachments, kRanks) << "each core's memory, once";
  }
  MemoryKind kind() const override { return MemoryKind::kNeuron; }

 private:
  PlayedNeuron neuron_{34};
  NeuronRuntime runtime_{neuron_.library(), GlobalRank(0), neuron_.claim(kRanks, 1)};
  std::vector<std::unique_ptr<HostFromAPageOn>> places_;
};
using OfiTypes = testing::Types<OfiWiresOfCores>;
INSTANTIATE_TYPED_TEST_SUITE_P(neuron_ofi_wire_test, WireContract, OfiTypes);

/// Two ranks with memory of their cores, as in a job.
class NeuronOfi : public testing::Test {
 protected:
  NeuronOfi() { neuron_.knobs().gives_addresses = true; }
  std::unique_ptr<NeuronPool> make_pool(int core) {
    return std::make_unique<NeuronPool>(runtime_, RelativeCore(core), 1 << 20);
  }
  std::vector<std::unique_ptr<WireEnd>> make_wires() {
    std::vector<Parts> parts;
    for (auto& pool : pools_) {
      parts.push_back({std::make_unique<PlayedEndpoint>(runtime_, *pool, neuron_), pool.get()});
    }
    std::vector<std::unique_ptr<WireEnd>> ends;
    for (auto& wire : connect(std::move(parts))) {
      ends.push_back(std::make_unique<WireEnd>(std::move(wire)));
    }
    return ends;
  }
  /// Sends what `byte` fills from the first core to the second, and returns what came.
  std::byte carry(std::vector<std::unique_ptr<WireEnd>>& ends, std::byte byte, TransferId id) {
    constexpr std::size_t kSize = 100'000;
    auto *const from = pools_[0]->allocate(kSize), *const to = pools_[1]->allocate(kSize);
    std::vector<std::byte> bytes(kSize, byte);
    const auto source = pools_[0]->require({from, kSize});
    runtime_.library().tensor_write(source.tensor, bytes.data(), source.offset, kSize);
    ends[0]->wire().send({from, kSize}, GlobalRank(1), id, id);
    ends[1]->wire().receive({to, kSize}, GlobalRank(0), id, id);
    const base::SteadyClock clock;
    const auto end = clock.now() + 30 * base::kSecond;
    const auto is_over = [&] {
      return ends[0]->sent.size() >= id && ends[1]->received.size() >= id;
    };
    while (!is_over() && clock.now() < end) {
      for (auto& each : ends) each->wire().poll();
    }
    EXPECT_TRUE(is_over());
    const auto place = pools_[1]->require({to, kSize});
    runtime_.library().tensor_read(place.tensor, bytes.data(), place.offset, kSize);
    pools_[0]->free(from);
    pools_[1]->free(to);
    EXPECT_THAT(bytes, testing::Each(bytes.front()));
    return bytes.front();
  }
  void leave(std::vector<std::unique_ptr<WireEnd>>& ends) {
    EXPECT_TRUE(leave_all({&ends[0]->wire(), &ends[1]->wire()}));
  }

  PlayedNeuron neuron_{34};
  NeuronRuntime runtime_{neuron_.library(), GlobalRank(0), neuron_.claim(2, 1)};
  std::vector<std::unique_ptr<NeuronPool>> pools_;
};

TEST_F(NeuronOfi, RegistersAPoolOnceAndDropsThatBeforeItsMemory) {
  for (int core = 0; core < 2; ++core) pools_.push_back(make_pool(core));
  auto ends = make_wires();
  for (TransferId id = 1; id <= 5; ++id) {
    EXPECT_EQ(carry(ends, std::byte(id), id), std::byte(id));
  }
  EXPECT_EQ(neuron_.counters().attachments, 2);
  leave(ends);
  pools_.clear();  // before the wires
  EXPECT_EQ(neuron_.counters().attached, 0);
  ends.clear();
  // The same addresses are other memory now.
  for (int core = 0; core < 2; ++core) pools_.push_back(make_pool(core));
  ends = make_wires();
  EXPECT_EQ(carry(ends, std::byte{9}, 1), std::byte{9});
  EXPECT_EQ(neuron_.counters().attachments, 4);
  leave(ends);
  ends.clear();
  EXPECT_EQ(neuron_.counters().attached, 0);
}

TEST_F(NeuronOfi, SaysWhenMemoryHasNoAddress) {
  neuron_.knobs().gives_addresses = false;
  for (int core = 0; core < 2; ++core) pools_.push_back(make_pool(core));
  auto ends = make_wires();
  auto* const block = pools_[0]->allocate(100);
  EXPECT_THAT(refusal<PeerLostError>([&] {
                ends[0]->wire().send({block, 100}, GlobalRank(1), 1, 1);
              }),
              HasSubstr("has no address"));
  leave(ends);
}

/// This libfabric knows no Neuron memory, and no EFA.
TEST_F(NeuronOfi, IsRefusedWhereNoProviderTakesMemoryOfDevices) {
  pools_.push_back(make_pool(0));
  EXPECT_THAT(refusal<PeerLostError>([&] { NeuronEndpoint(runtime_, *pools_[0]); }),
              HasSubstr("memory of devices (FI_HMEM)"));
}

}  // namespace neuron_ofi_wire_test
}  // namespace smp::d2d
