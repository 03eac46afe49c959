// server/protocol/ids.h: what messages name, as types that do not mix.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <tuple>

#include "smp/rank.h"

namespace smp::server {

/// A routed module of the session, by the order in which models were placed; the same on all ranks.
struct ModuleId {
  std::int32_t value = -1;
  friend auto operator<=>(ModuleId, ModuleId) = default;
};
/// The step's body, which belongs to no module.
inline constexpr ModuleId kBody{};

/// A place in a SlotTable. A slot that is used again gets another generation, so an id of something
/// that is gone finds nothing.
template <class Tag>
struct SlotId {
  std::uint32_t slot = 0;
  std::uint32_t generation = 0;  ///< 0: none
  explicit operator bool() const noexcept { return generation != 0; }
  friend bool operator==(SlotId, SlotId) = default;
};

/// A request that waits for its answer, at the rank that sent it.
using RequestId = SlotId<struct RequestTag>;
/// The graph that an execution left for its backward, at the rank that ran it.
using RecordId = SlotId<struct RecordTag>;

/// A request on the rank that runs it.
struct RequestName {
  PpRank caller;
  RequestId request;
  friend bool operator<(const RequestName& a, const RequestName& b) noexcept {
    const auto key = [](const RequestName& name) {
      return std::tuple(name.caller.value(), name.request.slot, name.request.generation);
    };
    return key(a) < key(b);
  }
};

/// One execution of the running step on this rank. The default names none.
struct ExecutionId {
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t microbatch = kNone;
  std::uint32_t number = kNone;  ///< by arrival; says nothing about the order of sums
  friend bool operator==(const ExecutionId&, const ExecutionId&) = default;
};

}  // namespace smp::server
