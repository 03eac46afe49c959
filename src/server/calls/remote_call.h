// server/calls/remote_call.h: the autograd node that stands in for a module of another rank
// (paper §4.1).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/calls/outgoing_call.h"
#include "server/graph/special_nodes.h"
#include "server/values/hooked_arguments.h"

namespace smp::server {

/// The results of a call that left hang on it. Dropped without a backward, it tells the owner to
/// forget the record. Threads: the rank's.
class RemoteCall final : public AsyncNode {
 public:
  explicit RemoteCall(std::shared_ptr<OutgoingCall> call) noexcept : call_(std::move(call)) {}
  ~RemoteCall() override { call_->drop(); }
  RemoteCall(const RemoteCall&) = delete;
  RemoteCall& operator=(const RemoteCall&) = delete;

  OutgoingCall& call() const noexcept { return *call_; }

  /// An output that is an argument, and passes its gradient on to it.
  struct Passing {
    std::uint32_t output, argument;
    at::Tensor gradient = {};  ///< while a backward runs
  };
  void set_passing(std::vector<Passing> passing) { passing_ = std::move(passing); }
  /// Which outputs the module has used for others (inner_outputs.h).
  void set_inner(Note inner) { inner_ = std::move(inner); }
  /// It is the graph of gradients; its last edge leads to the call that these are of.
  void set_older() noexcept { has_older_ = true; }
  /// The module registered hooks on arguments: their gradients are wanted (hooked_arguments.h).
  void keep_gradients(std::shared_ptr<HookedGradients> hooked) { hooked_ = std::move(hooked); }

  void start(variable_list&& gradients, const BackwardOptions& options, Completion done) override;
  /// True if gradients may go straight to `next`: not with retain_graph, nor where the order of
  /// calls may matter beyond what requests say.
  bool can_pass_on_to(const AsyncNode& next, const BackwardOptions& options) const override;
  void join_chain(const BackwardOptions& options, Completion done) override;
  void start_in_chain(variable_list&& gradients, const BackwardOptions& options,
                      const Paths& paths) override;
  /// Its backward, which it has joined without a pass (early_backward.h).
  void start_early(const BackwardOptions& options, const Paths& paths, const EarlyStart& start);
  void leave_chain() noexcept override { call_->leave(); }
  bool has_passed_on(std::uint32_t output) const override;
  void not_reached() noexcept override { call_->keep_record(); }
  void unpack(variable_list& gradients) override;
  bool has_older() const noexcept override { return has_older_; }
  void leave_rest_to(const AsyncNode& older) override;
  bool has_left_rest() const noexcept override { return call_->notes().left_rest; }
  void take_rest_of(const AsyncNode& younger) override;
  fiber::WaitReason wait_reason() const override;
  std::string name() const override { return "SmpRemoteCall"; }
#if SMP_INTRUSIVE_NODES  // else the destructor drops it as early
  void release_resources() override;
#endif
  bool uses_itself(std::uint32_t input) const override;
  void require_whole_gradient(std::uint32_t input) const override;

 private:
  void hang_on_graph(variable_list& gradients);
  bool may_be_in_chain() const noexcept;
  BackwardRequest request_for(variable_list&& gradients, const BackwardOptions& options,
                              const Paths& paths);

  const std::shared_ptr<OutgoingCall> call_;
  std::vector<Passing> passing_;             // nearly always empty
  Note inner_;                               // likewise
  std::shared_ptr<HookedGradients> hooked_;  // nullptr: the module hooked no argument
  edge_list histories_;  // of the gradients, while a backward with create_graph runs
  bool has_older_ = false;
  RecordId leaves_rest_to_;              // until the request is made
  std::vector<RecordId> takes_rest_of_;  // likewise
};

}  // namespace smp::server
