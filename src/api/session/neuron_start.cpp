// api/session/neuron_start.cpp: see the header.
#include "api/session/neuron_start.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/machine/home_device.h"
#include "d2d/wires/neuron/neuron_device.h"
#include "d2d/wires/neuron/neuron_pool.h"
#include "d2d/wires/neuron/neuron_probe_memory.h"
#include "smp/error.h"

namespace smp {
namespace {

using d2d::RelativeCore;

std::weak_ptr<NeuronStart>& asked() noexcept {
  static std::weak_ptr<NeuronStart> start;
  return start;
}

/// Memory of this library's own.
class OwnNeuron final : public NeuronStart {
 public:
  explicit OwnNeuron(const NeuronMemory& memory) : memory_(memory) {}
  const char* name() const noexcept override { return "a pool"; }
  bool has_started() const noexcept override { return end_.has_value(); }
  const d2d::NeuronEnd& end() const noexcept override { return *end_; }

  void start(const d2d::MpiSession& job, c10::Device computing) override {
    if (end_) return;
    SMP_REQUIRE(computing.is_cpu(), "rank ", job.rank(), ": device = ", computing,
                " beside smp::NeuronTensors, of which the host computes what others send; use "
                "device = cpu");
    runtime_.emplace(d2d::neuron(), job.rank(), claim_for(job));
    pool_.emplace(*runtime_, RelativeCore(0), memory_.bytes);
    device_.emplace(*runtime_, *pool_);
    end_.emplace(d2d::NeuronEnd{*runtime_, RelativeCore(0), *pool_, [this] {
                                  return std::make_unique<d2d::NeuronProbeMemory>(*runtime_,
                                                                                  *pool_);
                                }});
  }

 private:
  d2d::CoreClaim claim_for(const d2d::MpiSession& job) const {
    auto cores = static_cast<std::uint32_t>(memory_.cores);
    if (memory_.cores == 0) {
      const int status = d2d::neuron().get_total_vnc_count(&cores);
      SMP_REQUIRE_AS(
          PeerLostError, status == d2d::neuron_status::kSuccess, "rank ", job.rank(),
          ": counting the Neuron cores of its machine: nrt_get_total_vnc_count returned ",
          d2d::text_of_status(status), "; ", d2d::remedy_of_status(status));
    }
    return d2d::share_of_cores(static_cast<int>(cores), job.local_rank(), job.local_size(),
                               memory_.first_on_host);
  }

  NeuronMemory memory_;
  std::optional<d2d::NeuronRuntime> runtime_;
  std::optional<d2d::NeuronPool> pool_;
  std::optional<d2d::NeuronDevice> device_;
  std::optional<d2d::NeuronEnd> end_;
};

/// Tensors of the framework's device, for a probe.
class TensorsOfProbe final : public d2d::ProbeMemory {
 public:
  std::span<std::byte> allocate(std::size_t bytes) override {
    const auto options =
        at::TensorOptions(at::kByte).device(base::home_of(c10::DeviceType::PrivateUse1));
    tensors_.push_back(at::empty({static_cast<std::int64_t>(bytes)}, options));
    return {static_cast<std::byte*>(tensors_.back().mutable_data_ptr()), bytes};
  }
  void write(std::span<std::byte> to, const std::vector<std::byte>& bytes) override {
    auto host = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
    std::memcpy(host.mutable_data_ptr(), bytes.data(), bytes.size());
    part(to.first(bytes.size())).copy_(host);
  }
  std::vector<std::byte> read(std::span<const std::byte> from) override {
    const auto host = part(from).cpu();
    const auto* const start = static_cast<const std::byte*>(host.const_data_ptr());
    return {start, start + from.size()};
  }

 private:
  at::Tensor part(std::span<const std::byte> bytes) const {
    for (const auto& tensor : tensors_) {
      const auto gap = bytes.data() - static_cast<const std::byte*>(tensor.const_data_ptr());
      if (gap < 0 || gap >= tensor.numel()) continue;
      return tensor.narrow(0, gap, static_cast<std::int64_t>(bytes.size()));
    }
    SMP_ASSERT(false, "a probe of memory that it did not make");
    return {};
  }
  std::vector<at::Tensor> tensors_;
};

class AdoptedPlaces final : public d2d::NeuronPlaces {
 public:
  AdoptedPlaces(const NeuronStorages& storages, RelativeCore core)
      : storages_(storages), core_(core) {}
  std::optional<d2d::NeuronPlace> find(const std::byte* address) const override {
    const auto place = storages_.find(address);
    if (!place) return std::nullopt;
    return d2d::NeuronPlace{place->tensor, place->offset, place->room, core_};
  }
  using d2d::NeuronPlaces::about_to_free;

 private:
  const NeuronStorages& storages_;
  RelativeCore core_;
};

}  // namespace

/// The storages of a framework, which has started the runtime and ends it.
class AdoptedNeuron final : public NeuronStart {
 public:
  AdoptedNeuron(const NeuronStorages& storages, NeuronCore core)
      : storages_(storages), core_(core), places_(storages, RelativeCore(core.in_process)) {
    storages_.on_free_ = [this](nrt_tensor* tensor) { places_.about_to_free(tensor); };
  }
  ~AdoptedNeuron() override { storages_.on_free_ = nullptr; }
  AdoptedNeuron(const AdoptedNeuron&) = delete;
  AdoptedNeuron& operator=(const AdoptedNeuron&) = delete;

  const char* name() const noexcept override { return "a framework's"; }
  bool has_started() const noexcept override { return end_.has_value(); }
  const d2d::NeuronEnd& end() const noexcept override { return *end_; }

  void start(const d2d::MpiSession& job, c10::Device) override {
    if (end_) return;
    SMP_REQUIRE(d2d::memory_kind(c10::DeviceType::PrivateUse1) == d2d::MemoryKind::kNeuron, "rank ",
                job.rank(),
                ": smp::NeuronStorages of a framework, and LibTorch's private-use device "
                "is not \"neuron\"; let the framework register it before smp::init().");
    runtime_.emplace(d2d::neuron(), job.rank(),
                     d2d::CoreClaim{core_.on_host - core_.in_process, core_.in_process + 1},
                     d2d::NeuronRuntime::OfFramework());
    end_.emplace(d2d::NeuronEnd{*runtime_, RelativeCore(core_.in_process), places_,
                                [] { return std::make_unique<TensorsOfProbe>(); }});
  }

 private:
  const NeuronStorages& storages_;
  NeuronCore core_;
  AdoptedPlaces places_;
  std::optional<d2d::NeuronRuntime> runtime_;
  std::optional<d2d::NeuronEnd> end_;
};

std::shared_ptr<NeuronStart> asked_neuron() { return asked().lock(); }

void ask_for_neuron(const std::shared_ptr<NeuronStart>& start) {
  SMP_REQUIRE(
      asked().expired(),
      "a second smp::NeuronTensors in this process: a rank has tensors on one core; end the "
      "first one, and its session, before");
  asked() = start;
}

std::shared_ptr<NeuronStart> start_of(const NeuronMemory& memory) {
  SMP_REQUIRE(memory.bytes > 0 && memory.cores >= 0 && memory.first_on_host >= 0,
              "smp::NeuronMemory of ", memory.bytes, " bytes, ", memory.cores, " cores from ",
              memory.first_on_host, " on: none may be negative, and some bytes are needed.");
  return std::make_shared<OwnNeuron>(memory);
}

std::shared_ptr<NeuronStart> start_of(const NeuronStorages& storages, NeuronCore core) {
  SMP_REQUIRE(
      core.in_process >= 0 && core.on_host >= core.in_process, "Neuron core ", core.in_process,
      " of this process as core ", core.on_host,
      " of its host: numbers count from 0, and a process has its cores in the host's order.");
  return std::make_shared<AdoptedNeuron>(storages, core);
}

}  // namespace smp
