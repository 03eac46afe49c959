// api/step/step_call.cpp: from a call of a step to the module server's step, and back.
#include "api/step/step_call.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Type.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "api/rank/public_call.h"
#include "api/replicas/replicas.h"
#include "base/check.h"
#include "base/log.h"
#include "deferred/meta_scope.h"
#include "nn/weight_casts.h"
#include "schedule/split_step.h"
#include "server/protocol/exception_text.h"
#include "server/recompute/ahead.h"
#include "smp/distributed_model.h"

namespace smp::detail {
namespace {

/// Makes the tensors of an output ours alone, without history. The body may have returned a
/// parameter, an argument, or the same tensor for two microbatches, and whoever writes to an output
/// would change that as well. What the body computed is ours alone once its graph is gone, and is
/// not copied.
void own_all(Packet& packet) {
  const at::NoGradGuard no_grad;
  for (auto& tensor : packet.tensors) {
    if (!tensor.defined()) continue;
    tensor = tensor.detach();
    const bool alone = tensor.has_storage() && tensor.storage().use_count() == 1;
    if (!alone) tensor = tensor.clone();
  }
}

/// Logs each text once in a process, whatever numbers are in it.
void warn_once(const std::vector<std::string>& texts) {
  static std::set<std::string> said;
  for (const auto& text : texts) {
    auto words = text;
    std::erase_if(words, [](unsigned char letter) { return std::isdigit(letter) != 0; });
    if (said.insert(words).second) base::log_text(base::LogLevel::kWarning, text);
  }
}

struct EndOfMeetings {
  ~EndOfMeetings() { rank.end_meetings(); }
  Rank& rank;
};

/// While it lives, writes to parameters are watched, if other replicas have them too.
class WritesOfStep {
 public:
  WritesOfStep(const SessionParts& session, bool learns, server::StepTask& task)
      : writes_(session.replicas.writes()) {
    if (session.rank.groups().num_replicas() == 1) return;
    writes_.begin_step(learns);
    task.check = [this] { writes_.refuse_written(); };
  }
  ~WritesOfStep() { writes_.end_step(); }
  WritesOfStep(const WritesOfStep&) = delete;
  WritesOfStep& operator=(const WritesOfStep&) = delete;

 private:
  ReplicaWrites& writes_;
};

/// While it lives, code of the body may use the body's variables.
class CodeOfBody {
 public:
  CodeOfBody(int rank, int microbatch)
      : ahead_(server::RecomputeAhead::of(rank)), microbatch_(microbatch) {}
  ~CodeOfBody() { ahead_->body_ended(microbatch_); }
  CodeOfBody(const CodeOfBody&) = delete;
  CodeOfBody& operator=(const CodeOfBody&) = delete;

 private:
  const std::shared_ptr<server::RecomputeAhead> ahead_;
  const int microbatch_;
};

/// The caller's modes, with autocast on the rank's device under precision = "amp".
server::ExecutionModes modes_of_bodies(const Config& config) {
  auto modes = server::ExecutionModes::capture();
  if (config.precision != "amp") return modes;
  for (std::size_t i = 0; i < server::kAutocastDevices.size(); ++i) {
    const auto device = server::kAutocastDevices[i];
    auto& autocast = modes.autocast[i];
    if (autocast.enabled || c10::Device(config.device).type() != device) continue;
    autocast = {true, at::autocast::get_autocast_dtype(device)};
  }
  return modes;
}

/// Autocast casts a weight once a step: its cache, of which the process has one, is empty when the
/// microbatches of a step begin, since weights have changed, and when they have ended.
class CastsOfStep {
 public:
  explicit CastsOfStep(int microbatches) {
    at::autocast::clear_cache();
    if (microbatches > 1) others_.emplace();
  }
  ~CastsOfStep() { at::autocast::clear_cache(); }
  CastsOfStep(const CastsOfStep&) = delete;
  CastsOfStep& operator=(const CastsOfStep&) = delete;

 private:
  std::optional<nn::WeightCastsScope> others_;  // that its cache does not take
};

}  // namespace

StepCall::StepCall(const SessionParts& session, const StepOptions& options, SeenCuts& seen)
    : session_(session),
      options_(options),
      seen_(seen),
      modes_(modes_of_bodies(rank_.config())),
      among_replicas_(session.rank, session.replicas, modes_.grad) {
  const auto& config = rank_.config();
  task_.microbatches = options.microbatches.value_or(config.microbatches);
  wanted_ = task_.microbatches;
  task_.schedule = &rank_.schedule();
  require_listed();
  task_.earlier_steps = state_.earlier_steps();
  if (among_replicas_.shared()) {
    task_.first_microbatch = std::int64_t{rank_.groups().batch_number()} * wanted_;
  }
  task_.broadcast_outputs = options.broadcast_outputs.value_or(config.broadcast_outputs);
  task_.outputs = &result_.outputs;
  if (among_replicas_.shared() && modes_.grad) {
    task_.gradients = &session.replicas.gradients();
  }
}

StepResult StepCall::run(std::vector<StepArgument> arguments, const StepBody& body) {
  const PublicCall call("smp::step");
  if (rank_.topology().pp_size() > 1 || rank_.groups().num_replicas() > 1) compare_ranks(body);
  if (among_replicas_.idle()) return idle(body);
  if (rank_.is_first_stage()) prepare_body(std::move(arguments), body);
  const auto preview = inputs_ ? std::optional(preview_of(body)) : std::nullopt;
  prepare_models(session_, coming_step(body, preview ? &*preview : nullptr));
  task_.schedule = &rank_.schedule();  // plans may have set another
  take_buffers();
  keep_state_in_order(body);
  warn_of_idle_stages();
  try {
    among_replicas_.begin();
    run_pipeline();
  } catch (...) {
    among_replicas_.fail();
    throw;
  }
  among_replicas_.finish();
  take_weights();
  return std::move(result_);
}

/// Requires that the schedule's list covers all microbatches; on every rank, though the first may
/// have rows for fewer.
void StepCall::require_listed() const {
  const auto* list = task_.schedule->list(rank_.topology().pp_rank());
  SMP_REQUIRE(list == nullptr || wanted_ <= list->microbatches(), "rank ", rank_.topology().rank(),
              ": a step of ", wanted_, " microbatches, and pipeline = ", task_.schedule->name(),
              " lists ", list->microbatches(),
              ": set microbatches to the largest number, or take pipeline = interleaved");
}

/// Runs the step of a replica without a batch.
StepResult StepCall::idle(const StepBody& body) {
  ReplicaStep::Batch none;
  none.rows = 0;
  none.idle = true;
  none.facts = task_.facts;
  std::exception_ptr problem;
  try {
    if (rank_.is_first_stage()) among_replicas_.agree(none, loss());
  } catch (...) {
    problem = std::current_exception();  // the others place models first, too
  }
  prepare_models(session_, coming_step(body, nullptr));
  take_buffers();
  try {
    among_replicas_.begin();
    if (problem) std::rethrow_exception(problem);
  } catch (...) {
    among_replicas_.fail();
    throw;
  }
  among_replicas_.finish();
  return std::move(result_);
}

ComingStep StepCall::coming_step(const StepBody& body, const StepPreview* preview) const {
  const bool alone = rank_.groups().num_replicas() == 1;
  return {preview, &body.target_type(), modes_.grad, alone || modes_.grad};
}

std::string StepCall::loss() const { return options_.loss.value_or(rank_.config().loss); }

void StepCall::take_buffers() {
  if (!among_replicas_.shared() || !modes_.grad || !rank_.config().broadcast_buffers) return;
  take_buffers_of_first(session_);
}

/// Runs the step of this replica.
void StepCall::run_pipeline() {
  rank_.server().foreign().note_hooks();
  const EndOfMeetings end{rank_};
  const CastsOfStep casts(wanted_);
  const WritesOfStep writes(session_, modes_.grad, task_);
  server::RecomputeAhead::of(rank_.topology().rank())->set_kind(kind_);
  state_.take_trace(rank_.server().run_step(task_), modes_.grad);
  if (rank_.is_first_stage()) state_.step_kinds().add(kind_);
  if (inputs_) inputs_->run_outside_graph();
}

/// Runs microbatches one at a time where modules keep state that others read, so that these find
/// what they would find in one process; also in a kind of step that nobody has seen.
void StepCall::keep_state_in_order(const StepBody& body) {
  task_.one_at_a_time = rank_.server().modules().shared_state();
  kind_ = StepKinds::kind_of(rank_, body.target_type(), modes_.grad);
  if (rank_.is_first_stage()) {
    if (!state_.step_kinds().has(kind_)) task_.one_at_a_time = true;
  }
  if (task_.one_at_a_time) task_.schedule = &rank_.one_at_a_time();
}

/// Warns of fewer microbatches than stages: a microbatch is on one stage at a time, unless it has
/// calls that do not wait for each other.
void StepCall::warn_of_idle_stages() const {
  const int stages = rank_.topology().pp_size();
  if (rank_.topology().rank() != 0 || !modes_.grad || wanted_ >= stages) return;
  if (!inputs_ || state_.models().empty()) return;
  if (rank_.server().modules().shared_state()) return;  // one after the other anyway
  warn_once({base::concat("a step of ", wanted_, wanted_ == 1 ? " microbatch" : " microbatches",
                          " on ", stages, " stages: ", stages - wanted_,
                          " of them or more may be idle at any time. Two microbatches for each "
                          "stage, or more, keep them busy: set microbatches, or "
                          "StepOptions::microbatches, to ",
                          2 * stages, " if the batch has as many rows")});
}

void StepCall::compare_ranks(const StepBody& body) {
  task_.facts = state_.facts().take(body.target_type(), wanted_, modes_.grad, use_of_gradients());
  task_.explain_difference = [this](GlobalRank other, const std::string& facts) {
    return StepFacts::explain(rank_.topology().rank(), task_.facts, other.value(), facts);
  };
}

/// Returns what becomes of gradients, as text; empty if there is one replica.
std::string StepCall::use_of_gradients() const {
  if (rank_.groups().num_replicas() == 1) return {};
  if (!among_replicas_.shared()) return "none are computed (torch::NoGradGuard)";
  std::string apart, hooked;
  for (std::size_t i = 0; i < state_.models().size(); ++i) {
    if (!state_.models()[i]->syncs_gradients()) apart += base::concat(' ', i);
    if (state_.models()[i]->comm_hook()) hooked += base::concat(' ', i);
  }
  if (!hooked.empty()) hooked = ", with communication hooks of models" + hooked;
  return (apart.empty() ? "added up over replicas" : "kept apart (no_sync) of models" + apart) +
         hooked;
}

/// Splits the arguments and sets the body. An error in the arguments must end the step on every
/// rank, so it is thrown by a body.
void StepCall::prepare_body(std::vector<StepArgument> arguments, const StepBody& body) {
  ReplicaStep::Batch batch;
  try {
    split(std::move(arguments), body);
    batch.rows = inputs_->rows();
    batch.microbatches = inputs_->count();
  } catch (...) {
    throw_in_body(std::current_exception());
    batch.problem = server::text_of(std::current_exception());
  }
  if (!among_replicas_.shared()) return;
  batch.facts = task_.facts;
  if (inputs_ && rank_.groups().ranks_of_batch() > 1) batch.samples = inputs_->digest();
  try {
    const auto share = among_replicas_.agree(std::move(batch), loss());
    for (auto& weight : task_.weights) weight *= share;
  } catch (...) {
    if (inputs_) throw_in_body(std::current_exception());
  }
}

void StepCall::throw_in_body(std::exception_ptr error) {
  inputs_.reset();
  result_.outputs.clear();
  task_.microbatches = 1;
  task_.body = [error = std::move(error)](int) { std::rethrow_exception(error); };
}

void StepCall::split(std::vector<StepArgument> arguments, const StepBody& body) {
  for (std::size_t a = 0; a < arguments.size(); ++a) {
    const auto& [packet, outline, type, problem, entries] = arguments[a];
    SMP_REQUIRE(problem == nullptr, "argument ", a, " of the step, of type ",
                c10::demangle(type->name()), ": its codec threw: ", server::text_of(problem));
  }
  auto options = options_;
  const auto& config = rank_.config();
  if (options.weights.empty()) options.weights = config.loss_weights;
  inputs_.emplace(std::move(arguments), options, task_.microbatches, loss(), seen_);
  task_.microbatches = inputs_->count();
  task_.in_full = task_.microbatches == wanted_;
  task_.weights = inputs_->weights();
  result_.outputs.resize(static_cast<std::size_t>(inputs_->count()) + 1);
  result_.outputs.back() = pack(inputs_->weights());
  task_.body = [this, &body](int microbatch) { run_body(microbatch, body); };
  if (rank_.topology().rank() == 0) tell_of_division();
}

/// Says how the arguments are split, once for each kind of step.
void StepCall::tell_of_division() const {
  const auto& division = inputs_->division();
  warn_once(division.doubtful());
  schedule::SplitStep split{division.rows(), inputs_->count(), division.told()};
  if (split.rows < 0 || split.microbatches < 2) return;
  const auto text = schedule::to_text(split);
  if (state_.add_split(std::move(split))) base::log(base::LogLevel::kInfo, text);
}

StepPreview StepCall::preview_of(const StepBody& body) const {
  StepPreview preview;
  preview.run = [this, &body](int microbatch, bool grad, const std::function<double()>* value,
                              std::vector<at::Tensor>& batch) {
    auto modes = modes_;
    modes.grad = grad;
    const server::ModesScope scope(modes);
    auto slices = inputs_->preview(microbatch, value != nullptr);
    for (const auto& slice : slices) {
      batch.insert(batch.end(), slice.tensors.begin(), slice.tensors.end());
    }
    std::optional<deferred::MetaScope> shapes_only;
    if (value != nullptr) shapes_only.emplace(*value);
    return body(microbatch, slices).tensors;
  };
  preview.grad = modes_.grad;
  preview.body = &body.target_type();
  preview.arguments_key = [this](int microbatch) { return inputs_->preview_key(microbatch); };
  preview.microbatches = inputs_->count();
  preview.weights = task_.weights;
  preview.traced = std::min(rank_.config().trace_microbatches, inputs_->count());
  return preview;
}

void StepCall::run_body(int microbatch, const StepBody& body) {
  auto output = [&] {
    const server::ModesScope modes(modes_);
    auto slices = inputs_->slices(microbatch);    // outside of inference mode: they count writes
    std::optional<c10::InferenceMode> inference;  // one that is off would turn gradients on
    if (inference_) inference.emplace();
    const CodeOfBody in_body(rank_.topology().rank(), microbatch);
    return body(microbatch, slices);
  }();
  inputs_->check_unchanged(microbatch);
  rank_.server().foreign().refuse_new_hooks();
  refuse_written_weights(session_, microbatch);
  own_all(output);
  result_.outputs[static_cast<std::size_t>(microbatch)] = std::move(output);
}

/// Takes the weights out of the last packet; only pp_rank 0 could know them.
void StepCall::take_weights() {
  result_.here = !result_.outputs.empty();
  if (!result_.here) return;
  result_.weights = Reader(result_.outputs.back()).get<std::vector<double>>();
  result_.outputs.pop_back();
}

}  // namespace smp::detail
