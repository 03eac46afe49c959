// trial/tracer/switch_watch.h: modes that a body leaves for the microbatch after it: train(),
// eval() and requires_grad_().
#pragma once

#include <string>
#include <vector>

#include "trial/tracer/tracer.h"

namespace smp::partitioning {

/// Finds modes that a body leaves switched for the next microbatch, so that microbatches must run
/// one after the other. A switch before the body's first call of a module does not count, since
/// every microbatch makes it again; nor does one that the body switches back.
class SwitchWatch {
 public:
  explicit SwitchWatch(const std::vector<TracedModel>& models) : models_(models) {}

  void begin_run();
  void call_begins();
  void end_run();

  /// The first mode that was left switched, "module 'a.b' in evaluation mode"; empty if there is
  /// none.
  const std::string& found() const noexcept { return found_; }

 private:
  std::vector<char> flags() const;
  std::string describe(std::size_t flag) const;

  std::vector<TracedModel> models_;
  std::vector<char> at_begin_;
  std::vector<char> at_first_call_;  // empty: nothing was called
  std::string found_;
};

}  // namespace smp::partitioning
