// server/step/slot_table.h: objects by a number that is cheap to look up and never means another
// object.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "server/protocol/ids.h"

namespace smp::server {

/// A table of objects by id. Slots are used again, so the steady state allocates nothing. Threads:
/// the rank's.
template <class T, class Id>
class SlotTable {
 public:
  [[nodiscard]] Id add(T value) {
    const auto slot = take_slot();
    slots_[slot].value = std::move(value);
    ++size_;
    return {slot, ++slots_[slot].generation};
  }
  /// Returns the object of `id`, or nullptr if it is gone.
  [[nodiscard]] T* find(Id id) noexcept {
    if (!id || id.slot >= slots_.size()) return nullptr;
    auto& slot = slots_[id.slot];
    return slot.generation == id.generation && slot.value ? &*slot.value : nullptr;
  }
  /// Moves the object of `id` out; nullopt if it is gone.
  std::optional<T> take(Id id) {
    if (find(id) == nullptr) return std::nullopt;
    auto& slot = slots_[id.slot];
    std::optional<T> value = std::exchange(slot.value, std::nullopt);
    free_.push_back(id.slot);
    --size_;
    return value;
  }
  /// Moves everything out, in order of slots.
  std::vector<T> take_all() {
    std::vector<T> all;
    for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
      if (auto value = take({slot, slots_[slot].generation})) all.push_back(*std::move(value));
    }
    return all;
  }
  void clear() { static_cast<void>(take_all()); }
  std::size_t size() const noexcept { return size_; }

 private:
  struct Slot {
    std::optional<T> value;
    std::uint32_t generation = 0;
  };

  std::uint32_t take_slot() {
    if (free_.empty()) {
      slots_.emplace_back();
      return static_cast<std::uint32_t>(slots_.size() - 1);
    }
    const auto slot = free_.back();
    free_.pop_back();
    return slot;
  }

  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::size_t size_ = 0;
};

}  // namespace smp::server
