// server/calls/promised_call.h: a remote call that returned before its answer came: its results are
// promises (docs/design.md, Promised outputs). Threads: the rank's.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "module/node_pointer.h"
#include "server/calls/call_router.h"
#include "server/calls/remote_call.h"
#include "server/promises/expected_results.h"
#include "server/promises/promised_tensor.h"
#include "server/replay/recorded_flow.h"
#include "server/running/execution_scope.h"

namespace smp::server {

class PromisedCall;

/// Keeps outputs of a call from being released while its owner needs them for a later request to
/// itself. The owner asks for them when that request has come, which a large tensor may delay, so
/// they are kept until it has answered. For requests to other ranks the caller asks
/// (CallRouter::send).
class OutputUse {
 public:
  explicit OutputUse(std::shared_ptr<PromisedCall> call);
  ~OutputUse();
  OutputUse(OutputUse&&) noexcept = default;
  OutputUse(const OutputUse&) = delete;
  OutputUse& operator=(const OutputUse&) = delete;
  OutputUse& operator=(OutputUse&& other) noexcept {
    call_.swap(other.call_);
    return *this;
  }

 private:
  std::shared_ptr<PromisedCall> call_;
};

class PromisedCall final : public PromisedValues,
                           public OpenCall,
                           public ResponseTarget,
                           public std::enable_shared_from_this<PromisedCall> {
 public:
  /// @param own  the arguments as the caller has them
  /// @param uses  uses of outputs of earlier calls, for `request`
  /// @param recorded  the record of this call in earlier steps; nullptr: it is not recorded
  PromisedCall(CallRouter& router, PpRank owner, ForwardRequest& request, ExpectedResult& expected,
               at::ArrayRef<at::Tensor> own, OutputUses&& uses, RecordedFlow::Call* recorded);
  ~PromisedCall() override;
  PromisedCall(const PromisedCall&) = delete;
  PromisedCall& operator=(const PromisedCall&) = delete;

  /// Sets the id of the request whose answer this takes. Must be called before it is sent.
  void set_request(RequestId request) noexcept;
  /// Returns the result that the caller gets, with promised tensors.
  Packet promises();
  /// True if its outputs can be passed on by name; else their values are here, or must be fetched.
  /// Also notes that somebody wants to pass them on, so owners keep the outputs of alike calls from
  /// now on.
  bool passes_on() noexcept;
  /// Returns output `index` as an input of a request to `consumer`. PromisedInput::index is 0, to
  /// be set by the caller.
  PromisedInput pass_on(std::size_t index, PpRank consumer);

  // PromisedValues
  Value value(std::size_t index) override;
  void forget(std::size_t index) noexcept override;

  // OpenCall
  void finish() override;
  void fetch_all() override;
  void abandon() noexcept override;
  bool has_answered() const noexcept override { return answer_.has_value(); }
  const torch::autograd::Node* history() const noexcept override { return node_.get(); }

  // ResponseTarget
  void on_forward(ForwardResponse&& response) noexcept override;
  void on_backward(BackwardResponse&& response) noexcept override;
  void on_error(Failure&& failure) noexcept override;
  void on_abort() noexcept override;

 private:
  friend class OutputUse;
  struct Output {
    at::Tensor value;  // once it is here
    std::optional<c10::weak_intrusive_ptr<c10::TensorImpl>> promise;
    bool live = true;  // somebody may ask for it
    bool passed_on = false;
  };

  class Waiter;

  std::string who() const;
  CallRouter& router_in_step() const;
  void require_that_it_can_wait() const;
  void let_go() noexcept;
  void forget_inputs() noexcept;
  void await_end();
  void end() noexcept;
  bool ended() const noexcept { return answer_ || failure_ || aborted_; }
  void settle();
  void use_answer();
  std::vector<at::Tensor> outputs_of(ForwardResponse& answer, TensorFlags& requires_grad);
  bool is_as_expected(const ForwardResponse& answer, const std::vector<at::Tensor>& outputs,
                      const TensorFlags& requires_grad) const;
  void give_history(ForwardResponse& answer, std::vector<at::Tensor>& outputs,
                    const TensorFlags& requires_grad);
  std::vector<RemoteCall::Passing> arguments_among(const ForwardResponse& answer,
                                                   std::size_t num_outputs) const;
  void require_unchanged_arguments(const ForwardResponse& answer, std::size_t num_outputs) const;
  void require_no_hooks(const ForwardResponse& answer, std::size_t num_outputs) const;
  void require_that_consumers_are_right(const std::vector<RemoteCall::Passing>& passing) const;
  void give_history_to_arguments(const std::vector<RemoteCall::Passing>& passing,
                                 std::vector<at::Tensor>& outputs,
                                 const TensorFlags& requires_grad);
  void require_not_passed_on(std::size_t output) const;
  [[noreturn]] void throw_failure();

  std::weak_ptr<CallRouter> router_;  // tensors may outlive the session
  const PpRank owner_;
  const ModuleId module_;
  const char* const path_;
  const GlobalRank owner_name_;
  const std::int32_t microbatch_;
  const std::int64_t step_;
  const Settings settings_;
  const bool withheld_;  // as far as was asked for
  const bool kept_;
  const std::uint64_t number_;  // ExecutionScope::num_calls() of its caller
  const bool from_body_;
  RequestId request_;
  ExpectedResult& expected_;
  RecordedFlow::Call* const recorded_;   // as long as the router
  std::vector<SendAhead> ahead_;         // as often as requests have not named them yet
  std::vector<SendAhead> went_;          // where outputs were passed on to
  std::vector<at::Tensor> arguments_;    // until the answer was used
  OutputUses uses_;                      // as well
  std::vector<std::uint32_t> versions_;  // of those
  NodePointer<RemoteCall> node_;         // until the answer was used
  std::vector<Output> outputs_;
  std::size_t num_live_ = 0;  // and uses

  std::optional<ForwardResponse> answer_;
  std::optional<Failure> failure_;
  bool aborted_ = false;
  bool settled_ = false;
  bool linked_ = false;    // outputs are, or share memory with, tensors of the caller
  bool not_sent_ = false;  // the answer came without values
  bool thrown_ = false;
  bool fetched_ = false;
  bool at_once_ = false;  // before its caller had made other calls
  std::vector<fiber::Event*> waiters_;
};

}  // namespace smp::server
