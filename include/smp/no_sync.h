// smp/no_sync.h: steps that leave the gradients of each replica alone, to accumulate over several.
#pragma once

#include <memory>
#include <utility>

namespace smp {

class DistributedModelBase;

/// A scope of one model, made by DistributedModelBase::no_sync(). While one lives, steps add up the
/// model's gradients in each replica alone; the first step without one brings together all that
/// has been accumulated. Scopes nest. Threads: the rank's; made and ended outside of steps.
class [[nodiscard]] NoSync {
 public:
  NoSync(NoSync&& other) noexcept : scopes_(std::exchange(other.scopes_, nullptr)) {}
  NoSync& operator=(NoSync&&) = delete;
  ~NoSync() {
    if (scopes_) --*scopes_;
  }

 private:
  friend class DistributedModelBase;
  explicit NoSync(std::shared_ptr<int> scopes) : scopes_(std::move(scopes)) { ++*scopes_; }

  std::shared_ptr<int> scopes_;  // of the model, that live
};

}  // namespace smp
