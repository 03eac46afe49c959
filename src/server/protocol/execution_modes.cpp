// server/protocol/execution_modes.cpp: LibTorch's thread-local switches.
#include "server/protocol/execution_modes.h"

namespace smp::server {
namespace {

void set_autocast(const ExecutionModes& modes) {
  for (std::size_t i = 0; i < kAutocastDevices.size(); ++i) {
    const auto& wanted = modes.autocast[i];
    const auto device = kAutocastDevices[i];
    if (at::autocast::is_autocast_enabled(device) == wanted.enabled && !wanted.enabled) continue;
    at::autocast::set_autocast_enabled(device, wanted.enabled);
    if (wanted.enabled) at::autocast::set_autocast_dtype(device, wanted.dtype);
  }
}

}  // namespace

ExecutionModes ExecutionModes::capture() {
  ExecutionModes modes;
  modes.grad = at::GradMode::is_enabled();
  for (std::size_t i = 0; i < kAutocastDevices.size(); ++i) {
    auto& own = modes.autocast[i];
    own.enabled = at::autocast::is_autocast_enabled(kAutocastDevices[i]);
    if (own.enabled) own.dtype = at::autocast::get_autocast_dtype(kAutocastDevices[i]);
  }
  return modes;
}

ExecutionModes ExecutionModes::without_autocast() const {
  ExecutionModes modes;
  modes.grad = grad;
  return modes;
}

ModesScope::ModesScope(const ExecutionModes& modes)
    : grad_(modes.grad), outer_(ExecutionModes::capture()) {
  set_autocast(modes);
}

ModesScope::~ModesScope() { set_autocast(outer_); }

}  // namespace smp::server
