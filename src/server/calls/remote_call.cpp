// server/calls/remote_call.cpp: one backward request, and its answer.
#include "server/calls/remote_call.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "module/node_pointer.h"
#include "server/graph/gradient_sum.h"
#include "server/protocol/remote_exception.h"
#include "server/values/tensor_forms.h"

namespace smp::server {

RemoteCall::RemoteCall(CallRouter& router, PpRank owner, RecordId record, ModuleId module,
                       Settings settings)
    : router_(router.self_),
      owner_(owner),
      record_(record),
      module_(module),
      step_(router.core_.step->number),
      microbatch_(ExecutionScope::current()->identity().microbatch),
      settings_(std::move(settings)) {}

RemoteCall::~RemoteCall() { drop(); }

#if SMP_INTRUSIVE_NODES
void RemoteCall::release_resources() {
  drop();
  AsyncNode::release_resources();
}
#endif

void RemoteCall::drop() noexcept {
  if (std::exchange(used_, true) || !record_) return;
  if (const auto router = router_.lock()) router->release(owner_, step_, microbatch_, record_);
}

const char* RemoteCall::path() const noexcept {
  const auto router = router_.lock();
  return router == nullptr ? "?" : router->core_.scopes.modules.path(module_);
}

fiber::WaitReason RemoteCall::wait_reason() const {
  const auto router = router_.lock();
  const int peer = router == nullptr ? owner_.value() : router->core_.port.name(owner_).value();
  return {"backward", path(), peer, microbatch_};
}

CallRouter& RemoteCall::router_for(const BackwardOptions& options) const {
  const auto router = router_.lock();
  const auto* step = router == nullptr ? nullptr : router->core_.step.get();
  SMP_REQUIRE(step != nullptr && step->number == step_, "backward of remote module ", path(),
              ", microbatch ", microbatch_,
              ": its step is over; call model.backward() inside the body of smp::step");
  SMP_REQUIRE_AS(UnsupportedError, !options.create_graph, "backward of remote module ", path(),
                 ", microbatch ", microbatch_,
                 ": create_graph across ranks is not available; place the modules between the "
                 "outputs and the inputs of smp::grad() on one stage (model.set_partition(\"",
                 path(), "\", stage of its caller)), with the code that calls smp::grad()");
  SMP_REQUIRE(!running_, "backward of remote module ", path(), ", microbatch ", microbatch_,
              ": two backward passes run through it at the same time");
  return *router;
}

void RemoteCall::start(variable_list&& gradients, const BackwardOptions& options, Completion done) {
  if (early_ != Early::kNo) return join_chain(options, std::move(done));
  passed_.clear();
  for (const auto& own : passing_) {
    passed_.push_back(std::exchange(gradients.at(own.output), at::Tensor()));
  }
  join_chain(options, std::move(done));
  if (!running_) return;                       // the step has failed
  if (!record_) return complete({}, nullptr);  // nothing there needs a gradient
  try {
    start_in_chain(std::move(gradients), options, {});
  } catch (...) {
    leave_chain();
    throw;
  }
}

bool RemoteCall::can_pass_on_to(const AsyncNode& next, const BackwardOptions& options) const {
  const auto* const other = dynamic_cast<const RemoteCall*>(&next);
  const auto router = router_.lock();
  if (other == nullptr || router == nullptr || other->router_.lock() != router) return false;
  if (early_ != Early::kNo && other->early_ != Early::kNo) return true;
  if (!router->may_pass_on() || options.keep_graph || options.create_graph) return false;
  // Whether `other` ends as promised, its caller learns from what got its result by promise only.
  if (!forward_ && other->forward_) return false;
  const auto plain = [](const RemoteCall& call) {
    return (call.record_ || call.forward_) && call.passing_.empty() && !call.running_ &&
           !call.used_;
  };
  return plain(*this) && plain(*other) && hooked_ == nullptr && other->step_ == step_;
}

/// Enters the request into the step's table, so that its name is known before any request of the
/// chain is sent: others send gradients to it.
void RemoteCall::join_chain(const BackwardOptions& options, Completion done) {
  if (early_ != Early::kNo) {
    done_ = std::move(done);
    if (early_ != Early::kAsked) complete(std::move(early_gradients_), early_error_);
    return;
  }
  auto& router = router_for(options);
  SMP_REQUIRE(!used_, "Trying to backward through the graph a second time: that of remote module '",
              path(), "', microbatch ", microbatch_,
              ", was freed by the first backward; keep it with retain_graph");
  if (!options.keep_graph) used_ = true;
  done_ = std::move(done);
  running_ = owner_of<RemoteCall>(this);
  routed_ = {};
  if (router.core_.step->failed()) return on_abort();
  if (record_ || forward_) request_ = router.core_.step->requests.add(this);
}

void RemoteCall::join_early(const BackwardOptions& options, fiber::Event* on_answer) {
  join_chain(options, {});
  early_ = Early::kAsked;
  on_early_answer_ = on_answer;
}

void RemoteCall::start_early(const BackwardOptions& options, const Paths& paths,
                             const EarlyStart& start) {
  auto request = request_for({}, options, paths);
  request.early = start;
  request.early->forward = forward_;
  if (start.output >= 0) request.gradients.resize(num_results_);
  router_.lock()->request_backward(owner_, std::move(request));
}

/// An owner that was asked in vain, and has not said so yet, will not begin, because no gradient
/// comes to it.
void RemoteCall::leave_early(bool was_asked) noexcept {
  if (was_asked && early_ == Early::kAsked) note_not_begun();
  early_ = Early::kNo;
  early_gradients_.clear();
  early_error_ = nullptr;
  forget_on_answer();
  leave_chain();
}

void RemoteCall::start_in_chain(variable_list&& gradients, const BackwardOptions& options,
                                const Paths& paths) {
  if (!running_ || early_ != Early::kNo) return;  // the step has failed meanwhile, or it was sent
  router_.lock()->request_backward(owner_, request_for(std::move(gradients), options, paths));
}

void RemoteCall::leave_chain() noexcept {
  used_ = false;
  if (const auto router = router_.lock(); router != nullptr && router->core_.step != nullptr) {
    router->core_.step->requests.take(request_);
  }
  done_ = {};
  running_.reset();
}

BackwardRequest RemoteCall::request_for(variable_list&& gradients, const BackwardOptions& options,
                                        const Paths& paths) const {
  const auto router = router_.lock();
  BackwardRequest request{request_,
                          record_,
                          microbatch_,
                          ExecutionScope::current()->identity().after_first_backward,
                          options.keep_graph,
                          std::move(gradients),
                          !options.accumulate,
                          {},
                          changed_settings(*router)};
  request.forms = take_forms(request.gradients, "output gradient", path(), /*layout=*/false);
  if (!paths.in.empty()) {
    request.gradients.resize(std::max<std::size_t>(num_inputs(), num_results_));
  }
  for (const auto input : paths.in) request.promised.push_back({input});
  for (const auto& path : paths.out) {
    const auto& next = static_cast<const RemoteCall&>(*path.next);
    request.routes.push_back({path.output, next.owner_, next.request_, path.input});
  }
  return request;
}

/// Returns the flags of the caller's copy of the module if they have changed since the forward: a
/// parameter that was frozen since gets no gradient, as in one process.
std::optional<Settings> RemoteCall::changed_settings(CallRouter& router) const {
  auto& board = router.core_.scopes.settings;
  auto* module = router.core_.scopes.modules.find(module_);
  if (module == nullptr) return std::nullopt;
  const auto& part = board.flags().subtree(module->smp_module());
  if (board.read(part) == settings_) return std::nullopt;
  return board.read_all(part);
}

bool RemoteCall::has_passed_on(std::uint32_t output) const {
  const auto routed = routed_.view();
  return output < routed.size() && routed[output] != '\0';
}

/// The owner keeps the record, so a later backward may use it.
void RemoteCall::not_reached() noexcept {
  used_ = false;
  if (const auto router = router_.lock()) router->note_record(step_, microbatch_);
}

bool RemoteCall::uses_itself(std::uint32_t input) const {
  const auto inner = inner_.view();
  return input < inner.size() && inner[input] != '\0';
}

void RemoteCall::require_whole_gradient(std::uint32_t input) const {
  SMP_REQUIRE(!uses_itself(input), "module '", path(),
              "' lives on another rank and has used tensor ", input,
              " of its result for another part of its result. In one process a hook on it, "
              "retain_grad() or smp::grad() with respect to it sees the sum of all its gradients, "
              "here only those that arise at the caller. Look at a tensor of your own "
              "(x.view_as(x)) if these are enough, or place the module with its caller");
}

void RemoteCall::unpack(variable_list& gradients) {
  restore_forms(std::exchange(forms_, Note()), gradients);
  gradients.resize(num_outputs());
  for (std::size_t i = 0; i < passed_.size(); ++i) {
    if (!passed_[i].defined()) continue;
    add_gradient(gradients[passing_[i].argument], std::move(passed_[i]));
  }
  if (hooked_ != nullptr) hooked_->gradients = gradients;
}

void RemoteCall::complete(variable_list&& gradients, std::exception_ptr error) noexcept {
  if (early_ == Early::kAsked && !done_) {
    early_ = Early::kAnswered;
    early_gradients_ = std::move(gradients);
    early_error_ = std::move(error);
    if (on_early_answer_ != nullptr) on_early_answer_->signal();
    return;
  }
  early_ = Early::kNo;  // the pass that it was begun for has it; another one begins anew
  const auto alive = std::move(running_);
  std::exchange(done_, {})(std::move(gradients), std::move(error));
}

void RemoteCall::on_forward(ForwardResponse&&) noexcept {
  complete({}, std::make_exception_ptr(InternalError("a forward answer to a backward request")));
}

void RemoteCall::on_backward(BackwardResponse&& response) noexcept {
  forms_ = std::move(response.forms);
  routed_ = std::move(response.routed);
  complete(std::move(response.gradients), nullptr);
}

/// Takes an error. If the backward was not run because its gradient failed (Failure::of_input), no
/// error is passed on: the pass gets it from the call that should have made the gradient.
void RemoteCall::on_error(Failure&& failure) noexcept {
  if (!failure.of_input) return complete({}, remote_exception(failure));
  used_ = false;
  note_not_begun();
  complete({}, nullptr);
  if (early_ == Early::kAnswered) early_ = Early::kNotBegun;
}

void RemoteCall::note_not_begun() const noexcept {
  if (const auto router = router_.lock()) router->backward_not_begun(owner_, step_, microbatch_);
}

void RemoteCall::on_abort() noexcept { complete({}, std::make_exception_ptr(StepAborted{})); }

}  // namespace smp::server
