// d2d/wires/neuron/neuron_core.h: logical cores of Neuron devices, in the two ways that the
// runtime numbers them. Threads: any.
#pragma once

#include <ostream>
#include <string>

namespace smp::d2d {

/// A logical core's number; -1, the default, is none. Numbers of one kind do not convert to the
/// other: tensor calls take relative ones, send and receive absolute ones, and where a process sees
/// a part of a machine only, taking one for the other reaches another rank's core.
template <class Kind>
class NeuronCoreNumber {
 public:
  constexpr NeuronCoreNumber() = default;
  constexpr explicit NeuronCoreNumber(int value) : value_(value) {}
  constexpr int value() const noexcept { return value_; }
  friend constexpr bool operator==(NeuronCoreNumber, NeuronCoreNumber) = default;
  friend std::ostream& operator<<(std::ostream& out, NeuronCoreNumber core) {
    return out << core.value_;
  }

 private:
  int value_ = -1;
};

/// From 0 among the cores that this process has claimed.
using RelativeCore = NeuronCoreNumber<struct RelativeCores>;
/// On the host, whatever of it this process or its container sees.
using AbsoluteCore = NeuronCoreNumber<struct AbsoluteCores>;

/// The cores that a process claims: neighbours, as the runtime wants them.
struct CoreClaim {
  int first = 0;          ///< among the cores that are visible here
  int count = 1;          ///< at least 1
  int first_on_host = 0;  ///< the absolute number of the first visible core

  /// Returns the absolute number of a claimed core.
  /// @throws UsageError  the claim has no such core.
  AbsoluteCore absolute(RelativeCore core) const;
  /// Returns the claim as NEURON_RT_VISIBLE_CORES wants it: "3", or "2-5".
  std::string text() const;
};

/// Returns the share of a machine's `cores` that rank `local_rank` of its `local_size` ranks
/// claims: the same number for each, in the order of ranks. Cores that are left over stay free.
/// @throws UsageError  there are fewer cores than ranks.
CoreClaim share_of_cores(int cores, int local_rank, int local_size, int first_on_host = 0);

}  // namespace smp::d2d
