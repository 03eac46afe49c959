// server/running/call_way.h: which calls an execution has made so far.
#pragma once

#include <cstdint>

#include "base/random.h"
#include "server/protocol/ids.h"

namespace smp::server {

/// A name for them all, in their order (replay/recorded_flow.h reads and writes it).
struct CallWay {
  explicit CallWay(ModuleId of) noexcept
      : name(base::mix_key(0, static_cast<std::uint64_t>(of.value))) {}

  std::uint64_t name;
  bool is_new = false;  ///< no execution has gone it before
};

}  // namespace smp::server
