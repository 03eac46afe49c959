// smp/program/neuron.h: tensors in the memory of AWS Neuron cores (Trainium), which travel from
// core to core (docs/trainium.md). Nothing is computed there but by a framework that brings
// operators.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "smp/detail/export.h"

struct nrt_tensor;  // nrt_tensor_t of AWS's libnrt

namespace smp {

class NeuronStart;

/// What each rank takes of the machine's Neuron cores. `cores` and `first_on_host` are the same on
/// all ranks of a machine.
struct NeuronMemory {
  /// Bytes of a core's memory that are set aside for tensors of this rank.
  std::size_t bytes = std::size_t{1} << 30;
  /// The logical cores that the ranks of this machine share; each claims the same number, in order,
  /// and its tensors lie on the first. 0: all that the runtime counts.
  int cores = 0;
  /// The host's number of the first of them: not 0 in a container that sees some of a host's only.
  int first_on_host = 0;
};

/// The core on which a framework has its tensors, by both of its numbers.
struct NeuronCore {
  int in_process = 0;  ///< among those that this process has claimed, as calls for tensors count
  int on_host = 0;     ///< among all of the host, as nrt_async_sendrecv_init counts
};

/// The storages of a framework that has put them into a Neuron core's memory: it tells which tensor
/// of the runtime an address of its own stands for. The framework has started the runtime
/// (nrt_init), has registered LibTorch's private-use device under the name "neuron" with an
/// allocator, and copies between it and the host (Tensor::copy_).
class SMP_API NeuronStorages {
 public:
  /// A place in a tensor of the runtime.
  struct Place {
    nrt_tensor* tensor = nullptr;  ///< stays until about_to_free()
    std::uint64_t offset = 0;      ///< in bytes, from its start
    std::uint64_t room = 0;        ///< bytes from there to its end
  };

  virtual ~NeuronStorages();
  /// Returns the place of an address as Tensor::data_ptr() gives it, or one behind it; nothing: it
  /// is none of this core's. Threads: any.
  virtual std::optional<Place> find(const void* address) const = 0;

 protected:
  /// To be called right before a tensor that find() has named is freed: what was registered of it
  /// with a network is dropped then. Threads: the rank's.
  void about_to_free(nrt_tensor* tensor) const;

 private:
  friend class AdoptedNeuron;
  mutable std::function<void(nrt_tensor*)> on_free_;
};

/// Asks for Neuron memory for the job that smp::init() starts next, on all of its ranks. From then
/// on tensors of this device which modules of different ranks pass each other, and their gradients,
/// go from core to core on the fastest path that works (docs/trainium.md, Paths). One lives at a
/// time in a process.
///
///     const smp::NeuronTensors neuron({.bytes = std::size_t{4} << 30});
///     auto session = smp::init(argc, argv);
///     auto there = here.to(neuron.device());
///
/// A job that is only planned, and ranks of run_local(), have no cores: device() is the CPU there.
/// Threads: the rank's; tensors may be freed on any.
class SMP_API NeuronTensors {
 public:
  /// Memory of this library's own. smp::init() claims the cores, which are the rank's until the
  /// process ends or the runtime is closed, and registers LibTorch's private-use device as
  /// "neuron". What can be done with its tensors: make, view, copy to and from the host, send,
  /// free. It wants `device = cpu`: the host computes.
  ///
  /// smp::init() then throws on all ranks; where it is another rank's trouble, as UsageError with
  /// what that one says. UsageError: the private-use device is taken; fewer cores than ranks; some
  /// ranks ask for Neuron memory and some do not. ResourceError: the core has less memory.
  /// PeerLostError: no runtime of a known release; cores that others keep for 30 s; no path works.
  /// @throws UsageError  another of these lives, or a session runs: make it before smp::init().
  explicit NeuronTensors(const NeuronMemory& memory = {});
  /// The storages of a framework, which computes there itself (`device = neuron`) or not.
  /// @param storages  outlive this and the session
  /// @param core      on which all of them are
  /// @throws UsageError  as above; the numbers of the core cannot be.
  NeuronTensors(const NeuronStorages& storages, NeuronCore core);
  /// The cores are released once the session has ended as well. Tensors that live longer than both
  /// can only be freed.
  ~NeuronTensors();
  NeuronTensors(const NeuronTensors&) = delete;
  NeuronTensors& operator=(const NeuronTensors&) = delete;

  /// Returns the device to make tensors on.
  /// @throws UsageError  no session runs, or has run, with this.
  at::Device device() const;

 private:
  std::shared_ptr<NeuronStart> start_;
};

}  // namespace smp
