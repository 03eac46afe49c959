// server/calls.cpp: ModuleServer as a CallSink: calls that run here, and calls that leave.
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <exception>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/random.h"
#include "server/detached.h"
#include "server/module_server.h"
#include "server/remote_call.h"

namespace smp::server {
namespace {

/// User code that swallows StepAborted in a loop would never end.
constexpr int kMostAbortedCalls = 100;

Execution* execution_of_fiber() noexcept {
  const auto* fiber = base::current_fiber();
  return fiber == nullptr ? nullptr : static_cast<Execution*>(fiber->execution);
}

Modes current_modes(const RoutedBase& module) {
  Modes modes;
  modes.grad_mode = at::GradMode::is_enabled();
  modes.training = const_cast<RoutedBase&>(module).smp_module().is_training();
  modes.autocast = at::autocast::is_autocast_enabled(at::kCPU);
  if (modes.autocast) modes.autocast_dtype = at::autocast::get_autocast_dtype(at::kCPU);
  return modes;
}

}  // namespace

// ---- calls that run here ----------------------------------------------------------------------

/// Random stream and running statistics of one execution.
class ModuleServer::LocalScope {
 public:
  LocalScope(ModuleServer& server, RoutedBase& module, const Execution& execution, int call) {
    if (module.smp_draws_random()) {
      random_.emplace(server.random_key(execution.microbatch, module.smp_place.path.c_str(), call));
    }
    if (!server.normalises_[static_cast<std::size_t>(module.smp_place.index)]) return;
    if (auto statistics = DeferredStatistics::of(module.smp_module())) {
      statistics_.emplace(server.statistics_, std::move(*statistics), execution.microbatch, call);
    }
  }

 private:
  std::optional<base::RandomScope> random_;
  std::optional<DeferredStatistics::Execution> statistics_;
};

ModuleServer::Where ModuleServer::where(const RoutedBase& module, int owner) {
  if (owner < 0 || module.smp_place.index < 0) return Where::kPlain;
  if (!running_ || execution_of_fiber() == nullptr) {
    SMP_REQUIRE(owner == rank(), "rank ", rank(), ": module '", module.smp_place.path,
                "' lives on rank ", owner,
                " and was called outside of a step; call the model in "
                "the body of smp::step");
    return Where::kPlain;
  }
  return owner == rank() ? Where::kHere : Where::kRemote;
}

void* ModuleServer::enter(RoutedBase& module) {
  if (!inside_node()) scheduler_.take_turn();
  const auto& execution = *execution_of_fiber();
  auto& calls = calls_[static_cast<std::size_t>(execution.microbatch)];
  const int call = calls[static_cast<std::size_t>(module.smp_place.index)]++;
  return new LocalScope(*this, module, execution, call);
}

void ModuleServer::leave(RoutedBase&, void* token) noexcept {
  delete static_cast<LocalScope*>(token);
}

std::uint64_t ModuleServer::random_key(int microbatch, const char* path, int call) const {
  auto key = base::mix_key(options_.seed, static_cast<std::uint64_t>(task_.random_step));
  key = base::mix_key(key, static_cast<std::uint64_t>(task_.first_microbatch + microbatch));
  key = base::mix_key(key, std::string_view(path));
  return base::mix_key(key, static_cast<std::uint64_t>(call));
}

// ---- calls that leave -------------------------------------------------------------------------

std::optional<Packet> ModuleServer::call(RoutedBase& module, const CallEntry& entry, int owner,
                                         Packet&& arguments) {
  if (empty_because_unwinding()) return std::nullopt;
  ++counters_.forward_requests;
  auto response = await_response(forward_request(module, entry, arguments), owner, module);
  if (!response) {
    if (empty_because_unwinding()) return std::nullopt;
    throw_aborted();
  }
  if (response->failure) {
    if (std::uncaught_exceptions() > 0) {
      ++counters_.swallowed;
      return std::nullopt;
    }
    throw RemoteError(response->failure->text, response->failure->rank);
  }
  attach_history(*response, owner, arguments.tensors, module);
  return Packet{std::move(response->body), std::move(response->tensors)};
}

/// A destructor that runs because the step fails must not be thrown at.
bool ModuleServer::empty_because_unwinding() {
  if (!aborting_) return false;
  if (std::uncaught_exceptions() == 0) throw_aborted();
  ++counters_.swallowed;
  return true;
}

void ModuleServer::throw_aborted() {
  auto* fiber = base::current_fiber();
  if (++fiber->aborted_calls > kMostAbortedCalls) {
    char who[256] = "";
    describe(fiber->execution, who, sizeof who);
    base::log(base::LogLevel::kError, who,
              ": catches smp::StepAborted again and again (`catch (...)` in a loop?); its fiber is "
              "given up");
    workers_.give_up();
  }
  throw StepAborted{rank()};
}

Message ModuleServer::forward_request(RoutedBase& module, const CallEntry& entry,
                                      const Packet& arguments) {
  const auto& execution = *execution_of_fiber();
  Message request;
  request.kind = Kind::kForward;
  request.module = module.smp_place.index;
  request.call = entry.key;
  request.microbatch = execution.microbatch;
  request.late = execution.late;
  request.frozen_hash = frozen_hash_;
  request.modes = current_modes(module);
  request.body = arguments.bytes;
  request.tensors.reserve(arguments.tensors.size());
  for (const auto& tensor : arguments.tensors) {
    const bool needs_gradient =
        request.modes.grad_mode && tensor.defined() && tensor.requires_grad();
    request.requires_grad.push_back(static_cast<char>(needs_gradient));
    request.tensors.push_back(detached(tensor));
  }
  return request;
}

std::optional<Message> ModuleServer::await_response(Message&& request, int owner,
                                                    const RoutedBase& module) {
  base::Event arrived;
  std::optional<Message> response;
  const base::WaitReason reason{"forward", module.smp_place.path.c_str(), owner,
                                request.microbatch};
  request.request = pending_.add([&](std::optional<Message>&& answer) {
    response = std::move(answer);
    arrived.signal();
  });
  // The callback refers to this stack frame.
  struct Forget {
    PendingRequests& pending;
    std::uint64_t request;
    ~Forget() { pending.forget(request); }
  } const forget{pending_, request.request};
  send(owner, std::move(request));
  arrived.wait(reason);
  return response;
}

void ModuleServer::attach_history(Message& response, int owner,
                                  const std::vector<at::Tensor>& arguments,
                                  const RoutedBase& module) {
  if (response.record == 0) return;
  auto node = c10::make_intrusive<RemoteCall>(*this, owner, response.record, *execution_of_fiber(),
                                              module.smp_place.path.c_str());
  node->set_next_edges(torch::autograd::collect_next_edges(arguments));
  for (std::size_t i = 0; i < response.tensors.size(); ++i) {
    if (response.requires_grad[i] != 0) {
      torch::autograd::set_history(response.tensors[i], node);
    } else {
      node->add_input_metadata(Node::undefined_input{});
    }
  }
}

// ---- backward of remote calls -----------------------------------------------------------------

void ModuleServer::request_backward(int owner, Message&& request,
                                    PendingRequests::Callback answer) {
  if (aborting_) {
    answer(std::nullopt);
    return;
  }
  ++counters_.backward_requests;
  request.request = pending_.add(std::move(answer));
  send(owner, std::move(request));
}

void ModuleServer::release(int owner, std::int64_t step, std::uint64_t record) {
  if (!running_ || aborting_ || step != step_) return;
  to_release_.emplace_back(owner, record);
  receiving_ ? wake_.signal() : flush_releases();
}

void ModuleServer::flush_releases() {
  for (const auto& [owner, record] : std::exchange(to_release_, {})) {
    Message message;
    message.kind = Kind::kRelease;
    message.record = record;
    if (running_ && !aborting_) send(owner, std::move(message));
  }
}

RemoteCall::RemoteCall(ModuleServer& server, int owner, std::uint64_t record,
                       const Execution& caller, const char* path)
    : server_(server.self_),
      owner_(owner),
      record_(record),
      step_(server.step_),
      microbatch_(caller.microbatch),
      path_(path) {}

RemoteCall::~RemoteCall() { drop(); }

void RemoteCall::release_resources() {
  drop();
  AsyncNode::release_resources();
}

void RemoteCall::drop() noexcept {
  if (std::exchange(used_, true)) return;
  if (const auto server = server_.lock()) server->release(owner_, step_, record_);
}

void RemoteCall::start(variable_list&& gradients, const BackwardOptions& options, Completion done) {
  const auto server = server_.lock();
  SMP_REQUIRE(server != nullptr && server->running_ && server->step_ == step_,
              "backward of remote module ", path_, ", microbatch ", microbatch_,
              ": its step is over; call model.backward() inside the body of smp::step");
  SMP_REQUIRE_AS(UnsupportedError, !options.create_graph && options.accumulate,
                 "backward of remote module ", path_,
                 ": create_graph and grad() across ranks are not available; place the module with "
                 "its caller");
  Message request;
  request.kind = Kind::kBackward;
  request.record = record_;
  request.microbatch = microbatch_;
  request.late = execution_of_fiber()->late;
  request.keep_graph = options.keep_graph;
  request.tensors = std::move(gradients);
  if (!options.keep_graph) used_ = true;
  const auto num_inputs = num_outputs();
  auto self = c10::intrusive_ptr<RemoteCall>::unsafe_reclaim_from_nonowning(this);
  server->request_backward(
      owner_, std::move(request),
      [self, num_inputs, done = std::move(done)](std::optional<Message>&& answer) {
        if (!answer) return done({}, std::make_exception_ptr(StepAborted{}));
        if (answer->failure) {
          return done({}, std::make_exception_ptr(
                              RemoteError(answer->failure->text, answer->failure->rank)));
        }
        answer->tensors.resize(num_inputs);
        done(std::move(answer->tensors), nullptr);
      });
}

}  // namespace smp::server
