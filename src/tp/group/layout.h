// tp/group/layout.h: the two ways to cut transformer layers (paper App. F).
#pragma once

#include <cstdint>
#include <string>

namespace smp::tp {

/// The part of the hidden state that a rank has between blocks: the samples of its own batch, a
/// slice of the hidden size of the samples of all ranks, or a part of the sequence of the one batch
/// that all ranks have.
enum class Layout : std::uint8_t {
  kSpeed,     ///< App. F.1
  kMemory,    ///< App. F.2
  kSequence,  ///< cut like kSpeed; see tp/slices/sequence_parts.h
};

/// Returns the layout of a name; empty: that of the setting `optimize`. On a single rank there is
/// nothing to cut, and layers are those of kSpeed; so they are with kSequence where each rank has
/// samples of its own, which are cut along the batch already.
/// @param layer  for the message
/// @throws UsageError  another name, or no session runs.
Layout layout_of(const std::string& name, const char* layer);

/// Returns the layout of a name: "speed", "memory" or "sequence". @throws UsageError  naming
/// `layer`, if it is none of them.
Layout layout_named(const std::string& name, const char* layer);

}  // namespace smp::tp
