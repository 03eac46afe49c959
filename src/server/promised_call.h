// server/promised_call.h: a remote call that returned before its answer came: its results are
// promises (docs/design.md, Promised outputs). Threads: the rank's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "module/node_pointer.h"
#include "server/call_router.h"
#include "server/execution_scope.h"
#include "server/expected_results.h"
#include "server/promised_tensor.h"
#include "server/remote_call.h"

namespace smp::server {

class PromisedCall final : public PromisedValues,
                           public OpenCall,
                           public ResponseTarget,
                           public std::enable_shared_from_this<PromisedCall> {
 public:
  /// @param own  the arguments as the caller has them
  PromisedCall(CallRouter& router, PpRank owner, ForwardRequest& request, ExpectedResult& expected,
               at::ArrayRef<at::Tensor> own);
  ~PromisedCall() override;
  PromisedCall(const PromisedCall&) = delete;
  PromisedCall& operator=(const PromisedCall&) = delete;

  /// The request whose answer this takes; set before it is sent.
  void set_request(RequestId request) noexcept;
  /// What the caller gets.
  Packet promises();
  /// How the owner knows output `index`, to be passed on; nothing: its value is here, or must be
  /// fetched.
  std::optional<OutputName> name_of(std::size_t index);

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
  class Fetch;
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
  void await_end();
  void end() noexcept;
  bool ended() const noexcept { return answer_ || failure_ || aborted_; }
  void settle();
  std::vector<at::Tensor> outputs_of(ForwardResponse& answer, TensorFlags& requires_grad);
  bool is_as_expected(const ForwardResponse& answer, const std::vector<at::Tensor>& outputs,
                      const TensorFlags& requires_grad) const;
  void give_history(ForwardResponse& answer, std::vector<at::Tensor>& outputs,
                    const TensorFlags& requires_grad);
  std::vector<RemoteCall::Passing> arguments_among(const ForwardResponse& answer,
                                                   std::size_t num_outputs) const;
  void require_unchanged_arguments(const ForwardResponse& answer, std::size_t num_outputs) const;
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
  std::vector<at::Tensor> arguments_;    // until the answer was used
  std::vector<std::uint32_t> versions_;  // of those
  NodePointer<RemoteCall> node_;         // until the answer was used
  std::vector<Output> outputs_;
  std::size_t num_live_ = 0;

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
