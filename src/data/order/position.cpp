// data/order/position.cpp: see the header.
#include "data/order/position.h"

#include "base/random.h"

namespace smp::data {

std::int64_t DocumentOrder::document(std::int64_t epoch, std::int64_t index) const noexcept {
  if (!shuffle_) return index;
  return Permutation(documents_, base::mix_key(seed_, static_cast<std::uint64_t>(epoch)))(index);
}

}  // namespace smp::data
