// server/calls/remote_call.h: the autograd node that stands in for a module of another rank
// (paper §4.1).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "module/node_pointer.h"
#include "server/calls/call_router.h"
#include "server/graph/special_nodes.h"
#include "server/values/hooked_arguments.h"

namespace smp::server {

/// The autograd node of a remote execution. Its backward sends the gradients of its outputs to the
/// owner and completes with those of its inputs. Dropped without a backward, it tells the owner to
/// forget the record.
class RemoteCall final : public AsyncNode, private ResponseTarget {
 public:
  RemoteCall(CallRouter& router, PpRank owner, RecordId record, ModuleId module, Settings settings);
  ~RemoteCall() override;

  /// An output of a promised call that is one of its arguments, and passes its gradient on to it.
  struct Passing {
    std::uint32_t output, argument;
  };
  /// Makes use of the answer of a promised call. `record` may be the empty id, if nothing needs a
  /// gradient.
  void set_answer(RecordId record, std::vector<Passing> passing) {
    record_ = record;
    passing_ = std::move(passing);
    forward_ = {};
  }
  /// Makes this the node of a promised call that has not answered: `forward` is its request,
  /// `num_results` the number of tensors that it will return.
  void promise(RequestId forward, std::size_t num_results) noexcept {
    forward_ = forward;
    num_results_ = num_results;
  }
  /// True for a promised call whose answer has not been used yet.
  bool is_promise() const noexcept { return static_cast<bool>(forward_); }
  const char* path() const noexcept;

  void start(variable_list&& gradients, const BackwardOptions& options, Completion done) override;
  /// True if gradients may go straight to `next`: not with retain_graph, nor where the order of
  /// calls may matter beyond what requests say.
  bool can_pass_on_to(const AsyncNode& next, const BackwardOptions& options) const override;
  void join_chain(const BackwardOptions& options, Completion done) override;
  void start_in_chain(variable_list&& gradients, const BackwardOptions& options,
                      const Paths& paths) override;
  void leave_chain() noexcept override;

  // A backward that is asked for before its forward has answered (early_backward.h). A pass that
  // starts the node later gets what has come meanwhile.

  /// Calls join_chain() for a backward that starts early. `on_answer` is signalled when the owner
  /// has answered.
  void join_early(const BackwardOptions& options, fiber::Event* on_answer);
  void start_early(const BackwardOptions& options, const Paths& paths, const EarlyStart& start);
  /// The state of an early backward: not asked for, asked for, answered (by gradients or an
  /// exception), or answered that it was not begun.
  enum class Early : std::uint8_t { kNo, kAsked, kAnswered, kNotBegun };
  Early early() const noexcept { return early_; }
  void forget_on_answer() noexcept { on_early_answer_ = nullptr; }
  /// Gives an early backward up, because it was not begun on any rank.
  /// @param was_asked  its owner was told to begin, or may have been
  void leave_early(bool was_asked) noexcept;

  bool has_passed_on(std::uint32_t output) const override;
  void not_reached() noexcept override;
  void unpack(variable_list& gradients) override;
  fiber::WaitReason wait_reason() const override;
  std::string name() const override { return "SmpRemoteCall"; }
#if SMP_INTRUSIVE_NODES  // else drop() is called as early by the destructor
  void release_resources() override;
#endif
  bool uses_itself(std::uint32_t input) const override;
  void require_whole_gradient(std::uint32_t input) const override;
  /// Sets the outputs that the module has used for others (inner_outputs.h), one byte an output.
  void set_inner(Note inner) { inner_ = std::move(inner); }
  /// Makes each backward copy its gradients to `hooked`, because the module has registered hooks on
  /// arguments (hooked_arguments.h).
  void keep_gradients(std::shared_ptr<HookedGradients> hooked) { hooked_ = std::move(hooked); }

 private:
  // ResponseTarget
  void on_forward(ForwardResponse&& response) noexcept override;
  void on_backward(BackwardResponse&& response) noexcept override;
  void on_error(Failure&& failure) noexcept override;
  void on_abort() noexcept override;
  CallRouter& router_for(const BackwardOptions& options) const;
  BackwardRequest request_for(variable_list&& gradients, const BackwardOptions& options,
                              const Paths& paths) const;
  std::optional<Settings> changed_settings(CallRouter& router) const;
  void complete(variable_list&& gradients, std::exception_ptr error) noexcept;
  void note_not_begun() const noexcept;
  void drop() noexcept;

  std::weak_ptr<CallRouter> router_;  // a graph may outlive its session
  PpRank owner_;
  RecordId record_;
  ModuleId module_;
  std::int64_t step_;
  std::int32_t microbatch_;
  Settings settings_;  // of the caller when it had its answer
  bool used_ = false;
  std::vector<Passing> passing_;             // nearly always empty
  Note inner_;                               // likewise
  variable_list passed_;                     // their gradients, while a backward runs
  RequestId request_;                        // of the backward that runs
  Note forms_;                               // of the gradients that arrived
  Note routed_;                              // which others there are
  std::shared_ptr<HookedGradients> hooked_;  // nullptr: the module hooked no argument
  Completion done_;                          // of the backward that runs
  RequestId forward_;                        // of a promised call, until its answer is used
  std::size_t num_results_ = 0;              // likewise
  Early early_ = Early::kNo;
  variable_list early_gradients_;  // kAnswered, until a pass asks for them
  std::exception_ptr early_error_;
  fiber::Event* on_early_answer_ = nullptr;
  NodePointer<RemoteCall> running_;  // itself, while the answer is awaited
};

}  // namespace smp::server
