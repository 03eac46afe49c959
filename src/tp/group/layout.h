// tp/group/layout.h: the two ways to cut transformer layers (paper App. F).
#pragma once

#include <cstdint>
#include <string>

namespace smp::tp {

/// The part of the hidden state that a rank has between blocks: the samples of its own batch, or a
/// slice of the hidden size of the samples of all ranks.
enum class Layout : std::uint8_t {
  kSpeed,   ///< App. F.1
  kMemory,  ///< App. F.2
};

/// Returns the layout of a name, "speed" or "memory"; empty: that of the setting `optimize`. On a
/// single rank there is nothing to cut, and layers are those of kSpeed.
/// @param layer  for the message. @throws UsageError  another name, or no session runs.
Layout layout_of(const std::string& name, const char* layer);

/// Returns the layout of a name. @throws UsageError  naming `layer`, if it is none of the two.
Layout layout_named(const std::string& name, const char* layer);

}  // namespace smp::tp
