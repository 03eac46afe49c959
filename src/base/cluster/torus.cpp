// base/cluster/torus.cpp: see the header.
#include "base/cluster/torus.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace smp::base {

Torus::Torus(std::vector<int> sizes) : sizes_(std::move(sizes)), strides_(sizes_.size(), 1) {
  for (const int size : sizes_) SMP_ASSERT(size >= 1);
  for (std::size_t d = sizes_.size(); d-- > 1;) strides_[d - 1] = strides_[d] * sizes_[d];
}

int Torus::devices() const { return sizes_.empty() ? 1 : strides_.front() * sizes_.front(); }

int Torus::place(int device, std::size_t dimension) const {
  return device / strides_[dimension] % sizes_[dimension];
}

/// The device `by` places up its ring, or down.
int Torus::moved(int device, std::size_t dimension, int by) const {
  const int size = sizes_[dimension], own = place(device, dimension);
  return device + ((own + by + size) % size - own) * strides_[dimension];
}

std::vector<int> Torus::neighbours(int device) const {
  std::vector<int> all;
  for (std::size_t d = 0; d < sizes_.size(); ++d) {
    for (const int by : {1, -1}) all.push_back(moved(device, d, by));
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  std::erase(all, device);  // of a ring of one
  return all;
}

int Torus::distance(int from, int to) const {
  int links = 0;
  for (std::size_t d = 0; d < sizes_.size(); ++d) {
    const int up = (place(to, d) - place(from, d) + sizes_[d]) % sizes_[d];
    links += std::min(up, sizes_[d] - up);
  }
  return links;
}

std::vector<Torus::Hop> Torus::route(int from, int to) const {
  std::vector<Hop> hops;
  for (std::size_t d = sizes_.size(); d-- > 0;) {
    const int up = (place(to, d) - place(from, d) + sizes_[d]) % sizes_[d];
    const int down = sizes_[d] - up;
    const bool goes_up = up != down ? up < down : place(from, d) % 2 == 0;
    for (int links = std::min(up, down); links > 0; --links) {
      const int next = moved(from, d, goes_up ? 1 : -1);
      hops.push_back({from, next, static_cast<int>(d)});
      from = next;
    }
  }
  return hops;
}

}  // namespace smp::base
