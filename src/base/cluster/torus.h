// base/cluster/torus.h: devices on a grid whose rows close to rings.
#pragma once

#include <vector>

namespace smp::base {

/// Devices on a grid of any number of dimensions, each row of which closes to a ring. They are
/// numbered row by row: the last dimension varies fastest. Immutable.
class Torus {
 public:
  /// @param sizes  devices of a ring in each dimension, 1 or more
  explicit Torus(std::vector<int> sizes);

  const std::vector<int>& sizes() const { return sizes_; }
  int devices() const;
  /// Returns the devices that have a link to `device`, each once, ascending.
  std::vector<int> neighbours(int device) const;
  /// Returns the links on a shortest way between the two.
  int distance(int from, int to) const;

  /// One link in one direction.
  struct Hop {
    int from = 0;
    int to = 0;
    int dimension = 0;
    bool operator==(const Hop&) const = default;
  };
  /// Returns a shortest way: dimension by dimension from the last, each the shorter way round.
  /// Where both are as long, devices at even places go up and those at odd ones down, so that
  /// traffic of all with all loads both directions of a ring alike.
  std::vector<Hop> route(int from, int to) const;

 private:
  int place(int device, std::size_t dimension) const;
  int moved(int device, std::size_t dimension, int by) const;

  std::vector<int> sizes_;
  std::vector<int> strides_;  // numbers between neighbours, by dimension
};

}  // namespace smp::base
