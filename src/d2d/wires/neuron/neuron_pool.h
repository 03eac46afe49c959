// d2d/wires/neuron/neuron_pool.h: memory of a Neuron core for tensors: one tensor of the runtime,
// given out in blocks. Threads: any.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "d2d/wires/neuron/neuron_places.h"
#include "d2d/wires/neuron/neuron_runtime.h"

namespace smp::d2d {

/// A pool of fixed size, so that the runtime allocates once and registrations of networks, which
/// end with the memory and not with an address, would be made once. A block is named by an address
/// that nobody may read or write, since the runtime need not have one; who takes it for host memory
/// ends there and then.
class NeuronPool final : public NeuronPlaces {
 public:
  static constexpr std::size_t kAlignment = 512;

  /// Takes memory of `core`.
  /// @param runtime  outlives this
  /// @throws ResourceError  the core has less.
  NeuronPool(NeuronRuntime& runtime, RelativeCore core, std::size_t bytes);
  /// Frees the memory, whatever is in use: nobody uses it any more.
  ~NeuronPool() override;
  NeuronPool(const NeuronPool&) = delete;
  NeuronPool& operator=(const NeuronPool&) = delete;

  /// Returns a block of at least `bytes`; nullptr for none.
  /// @throws ResourceError  no free block is so long; says how much is free.
  std::byte* allocate(std::size_t bytes);
  /// Gives a block back. @param block  as allocate() gave it, or nullptr
  void free(std::byte* block) noexcept;
  std::optional<NeuronPlace> find(const std::byte* address) const override;

  RelativeCore core() const noexcept { return core_; }
  std::size_t bytes() const noexcept { return bytes_; }
  /// Returns the bytes of blocks that are in use, and the most there were since forget_most_used().
  std::size_t used() const;
  std::size_t most_used() const;
  void forget_most_used();

 private:
  void add_free(std::size_t offset, std::size_t size);
  void remove_free(std::map<std::size_t, std::size_t>::iterator block);

  NeuronRuntime& runtime_;
  RelativeCore core_;
  std::size_t bytes_;
  NeuronLibrary::Tensor* tensor_ = nullptr;
  std::byte* shown_ = nullptr;  // addresses without memory
  mutable std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_, taken_;        // sizes by offset
  std::set<std::pair<std::size_t, std::size_t>> by_size_;  // free ones: size, offset
  std::size_t used_ = 0, most_used_ = 0;
};

}  // namespace smp::d2d
