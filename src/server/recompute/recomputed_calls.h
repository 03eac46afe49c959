// server/recompute/recomputed_calls.h: modules and code whose calls are regions.
#pragma once

#include <cstddef>

#include "module/grouped_calls.h"
#include "smp/detail/call.h"
#include "smp/recompute/activation_checkpointing.h"

namespace smp::server {

/// Marks a routed module: its calls keep their inputs, and compute the rest again. A call inside of
/// such a call is a part of it. Threads: the rank's.
class RecomputedCalls final : public CallWrapper {
 public:
  explicit RecomputedCalls(const CheckpointOptions& options) : options_(options) {}
  bool applies(const RoutedBase& module) const override;
  Packet run(RoutedBase& module, const CallEntry& entry, Packet& arguments, Thunk plain) override;
  const CheckpointOptions& options() const noexcept { return options_; }

 private:
  const CheckpointOptions options_;
};

/// Marks a Sequential: so many neighbouring modules of it that run here are such a call. Threads:
/// the rank's.
class RecomputedGroups final : public module::GroupedCalls {
 public:
  /// @param size  the most modules of a group; 0: any number
  RecomputedGroups(std::size_t size, const CheckpointOptions& options)
      : size_(size), options_(options) {}
  std::size_t size() const noexcept override { return size_; }
  bool groups() const override;
  const CheckpointOptions& options() const noexcept { return options_; }
  Packet run_group(RoutedBase& module, std::size_t first, std::size_t last, Packet& arguments,
                   Thunk plain) override;

 private:
  const std::size_t size_;
  const CheckpointOptions options_;
};

/// True if recomputes(), and such calls keep the results of products.
bool keeps_products(const RoutedBase& module) noexcept;
/// True if calls of `module`, or groups of the calls that it makes, are regions.
bool recomputes(const RoutedBase& module) noexcept;
/// Makes regions of the calls of `module`, and of none below it by themselves.
/// @param options  without a strategy
void recompute_calls_of(RoutedBase& module, const CheckpointOptions& options);

}  // namespace smp::server
