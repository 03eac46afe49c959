// d2d/wires/neuron/neuron_places.h: where bytes of Neuron memory lie, by the addresses that tensors
// show. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "d2d/wires/neuron/neuron_core.h"
#include "d2d/wires/neuron/neuron_library.h"

namespace smp::d2d {

/// A place in a tensor of the runtime, which knows no addresses.
struct NeuronPlace {
  NeuronLibrary::Tensor* tensor = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t room = 0;  ///< bytes from there to the tensor's end
  RelativeCore core;       ///< whose memory it is
};

/// The small interface by which storages of any framework are adopted: it tells which tensor of the
/// runtime an address of its own stands for.
class NeuronPlaces {
 public:
  virtual ~NeuronPlaces() = default;
  /// Returns the place of an address; nothing: it is none of this memory's.
  virtual std::optional<NeuronPlace> find(const std::byte* address) const = 0;

  /// Returns the place of all of `bytes`. The runtime documents no status for bytes outside of a
  /// tensor, so every call is checked here.
  /// @throws InternalError  they do not lie in one tensor.
  NeuronPlace require(std::span<const std::byte> bytes) const;

  using OnFree = std::function<void(NeuronLibrary::Tensor*)>;
  /// Calls `on_free` before a tensor is freed, for as long as what this returns lives: who has
  /// registered it with a network drops that first. Threads: the rank's.
  [[nodiscard]] std::shared_ptr<const OnFree> watch(OnFree on_free) const;

 protected:
  /// To be called by whoever frees tensors.
  void about_to_free(NeuronLibrary::Tensor* tensor) const;

 private:
  mutable std::vector<std::weak_ptr<const OnFree>> watching_;
};

}  // namespace smp::d2d
