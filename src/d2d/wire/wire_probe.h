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

/// The patience of probes while a job starts.
inline constexpr base::Nanoseconds kProbePatience = 20 * base::kSecond;

/// The memory of the data in a probe, which the wire reaches and the host perhaps does not.
class ProbeMemory {
 public:
  virtual ~ProbeMemory() = default;
  /// Returns memory that stays until this ends.
  virtual std::span<std::byte> allocate(std::size_t bytes) = 0;
  virtual void write(std::span<std::byte> to, const std::vector<std::byte>& bytes) = 0;
  /// Returns the bytes that are there once all that was received is.
  virtual std::vector<std::byte> read(std::span<const std::byte> from) = 0;
};

/// Tries a wire: every member sends every other one control bytes and data, and looks at what
/// comes. All members call it, before anything else is sent; blocks, for `patience` if something
/// does not come.
/// @return the first problem, with the rank that it concerns; empty: none
std::string probe(Wire& wire, base::Nanoseconds patience);
/// Does the same with data in `memory`, which is not freed if something does not come.
std::string probe(Wire& wire, base::Nanoseconds patience, std::unique_ptr<ProbeMemory> memory);

}  // namespace smp::d2d
