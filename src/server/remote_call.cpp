// server/remote_call.cpp: one backward request, and its answer.
#include "server/remote_call.h"

#include <utility>

#include "base/check.h"
#include "server/gradient_sum.h"
#include "server/remote_exception.h"
#include "server/tensor_forms.h"

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

void RemoteCall::release_resources() {
  drop();
  AsyncNode::release_resources();
}

void RemoteCall::drop() noexcept {
  if (std::exchange(used_, true) || !record_) return;
  if (const auto router = router_.lock()) router->release(owner_, step_, record_);
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

void RemoteCall::start(variable_list&& gradients, const BackwardOptions& options, Completion done) {
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
  if (!options.keep_graph) used_ = true;
  passed_.clear();
  for (const auto& own : passing_) {
    passed_.push_back(std::exchange(gradients.at(own.output), at::Tensor()));
  }
  done_ = std::move(done);
  running_ = c10::intrusive_ptr<RemoteCall>::unsafe_reclaim_from_nonowning(this);
  if (!record_) return complete({}, nullptr);  // nothing there needs a gradient
  const auto& caller = ExecutionScope::current()->identity();
  BackwardRequest request{{},
                          record_,
                          microbatch_,
                          caller.after_first_backward,
                          options.keep_graph,
                          std::move(gradients),
                          !options.accumulate,
                          {},
                          changed_settings(*router)};
  try {
    request.forms = take_forms(request.gradients, "output gradient", path(), /*layout=*/false);
    router->request_backward(owner_, std::move(request), *this);
  } catch (...) {
    running_.reset();
    throw;
  }
}

/// What was frozen since the forward gets no gradient, as in one process.
std::optional<Settings> RemoteCall::changed_settings(CallRouter& router) const {
  auto& board = router.core_.scopes.settings;
  auto* module = router.core_.scopes.modules.find(module_);
  if (module == nullptr) return std::nullopt;
  const auto& part = board.subtree(module->smp_module());
  if (board.read(part) == settings_) return std::nullopt;
  return board.read_all(part);
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
  const auto alive = std::move(running_);
  std::exchange(done_, {})(std::move(gradients), std::move(error));
}

void RemoteCall::on_forward(ForwardResponse&&) noexcept {
  complete({}, std::make_exception_ptr(InternalError("a forward answer to a backward request")));
}

void RemoteCall::on_backward(BackwardResponse&& response) noexcept {
  forms_ = std::move(response.forms);
  complete(std::move(response.gradients), nullptr);
}

void RemoteCall::on_error(Failure&& failure) noexcept { complete({}, remote_exception(failure)); }

void RemoteCall::on_abort() noexcept { complete({}, std::make_exception_ptr(StepAborted{})); }

}  // namespace smp::server
