// server/protocol/execution_modes.h: LibTorch's modes that a caller passes on to what it calls,
// captured and applied in one place: for the bodies of a step, and for modules on other ranks.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <array>

namespace smp::server {

/// The devices with an autocast mode of their own.
inline constexpr std::array kAutocastDevices{at::kCPU, at::kCUDA};

/// The modes of the calling thread, and so of its running fiber. Whether a module trains is its own
/// business, not a mode: it is compared, not applied.
struct ExecutionModes {
  struct Autocast {
    bool enabled = false;
    at::ScalarType dtype = at::kBFloat16;  ///< of no meaning while it is off
    friend bool operator==(const Autocast&, const Autocast&) = default;
  };
  bool grad = true;
  std::array<Autocast, kAutocastDevices.size()> autocast;  ///< by device

  [[nodiscard]] static ExecutionModes capture();
  /// Returns these modes with autocast off, for a backward, which runs in the types of its forward.
  [[nodiscard]] ExecutionModes without_autocast() const;
  friend bool operator==(const ExecutionModes&, const ExecutionModes&) = default;
};

/// While it lives, these are the calling thread's modes; a fiber takes them along. Autocast's cache
/// stays as it is. Microbatches share the node of a cached cast, as passes count for themselves.
class ModesScope {
 public:
  explicit ModesScope(const ExecutionModes& modes);
  ~ModesScope();
  ModesScope(const ModesScope&) = delete;
  ModesScope& operator=(const ModesScope&) = delete;

 private:
  at::AutoGradMode grad_;
  ExecutionModes outer_;
};

}  // namespace smp::server
