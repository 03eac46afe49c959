// server/protocol/settings.h: the switches of a module and everything below it, as they travel with
// a call: which modules train, and which parameters require gradients (docs/design.md, Settings).
#pragma once

#include <cstdint>

#include "server/protocol/note.h"

namespace smp::server {

/// The flags in the order of SettingFlags::subtree(): of each module its training flag, then the
/// requires_grad flags of its own parameters. Nearly always every one of them is on, and then
/// nothing is sent.
struct Settings {
  bool plain = true;        ///< all flags are on; the rest has no meaning then
  std::uint64_t first = 0;  ///< the first 64 flags
  Note further;             ///< those after them, eight a byte

  friend bool operator==(const Settings&, const Settings&) = default;
};

}  // namespace smp::server
