// d2d/wire/wire_probe.h: whether a wire carries what it is given, tried before it is used.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "d2d/wire/wire.h"

namespace smp::d2d {

/// Of probes while a job starts.
inline constexpr base::Nanoseconds kProbePatience = 20 * base::kSecond;

/// Where the data of a probe lies: memory that the wire reaches, and perhaps the host does not.
class ProbeMemory {
 public:
  virtual ~ProbeMemory() = default;
  /// Stays until this ends.
  virtual std::span<std::byte> allocate(std::size_t bytes) = 0;
  virtual void write(std::span<std::byte> to, const std::vector<std::byte>& bytes) = 0;
  /// What is there once all that was received is.
  virtual std::vector<std::byte> read(std::span<const std::byte> from) = 0;
};

/// Every member sends every other one control bytes and data, and looks at what comes. All members
/// call it, before anything else is sent; blocks, for `patience` if something does not come.
/// @return what is wrong, with the rank it was to come from; empty: nothing
std::string probe(Wire& wire, base::Nanoseconds patience);
/// The same with data in `memory`, which is not freed if something does not come.
std::string probe(Wire& wire, base::Nanoseconds patience, std::unique_ptr<ProbeMemory> memory);

}  // namespace smp::d2d
