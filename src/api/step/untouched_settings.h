// api/step/untouched_settings.h: a body that runs in advance leaves the modes of modules as they
// were.
#pragma once

#include <vector>

#include "server/modules/settings_board.h"
#include "smp/distributed_model.h"

namespace smp {

/// Restores the modes of modules after a trial run. The body may switch them there, and its first
/// microbatch would find them switched.
class UntouchedSettings {
 public:
  explicit UntouchedSettings(const std::vector<DistributedModelBase*>& models) {
    for (auto* model : models) board_.attach(model->base_module());
    board_.begin_step();
  }
  ~UntouchedSettings() {
    auto now = board_.base();
    board_.note(now);
    board_.apply(board_.base());
  }
  UntouchedSettings(const UntouchedSettings&) = delete;
  UntouchedSettings& operator=(const UntouchedSettings&) = delete;

 private:
  server::SettingsBoard board_;
};

}  // namespace smp
