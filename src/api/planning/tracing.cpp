// api/planning/tracing.cpp: one try with gradients, one as the caller wanted it, the same on the
// device if the program allows it, else none.
#include "api/planning/tracing.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "api/planning/trial_results.h"
#include "api/planning/trial_warnings.h"
#include "api/rank/rank.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/machine/device.h"
#include "base/random.h"
#include "deferred/delayed_tensors.h"
#include "partition/model/kept_state.h"
#include "server/protocol/exception_text.h"
#include "server/step/step_engine.h"
#include "smp/error.h"
#include "smp/step.h"
#include "tp/slices/sliced_parameters.h"
#include "trial/child_process.h"
#include "trial/operators/write_guard.h"
#include "trial/state/state_readers.h"
#include "trial/trace_bytes.h"
#include "trial/tracer/tracer.h"

namespace smp {
namespace {

using simulate::StateKind;
using Traces = std::vector<simulate::Trace>;

constexpr double kMuchLonger = 20;  // than an ordinary run: code that waits for a member in vain

/// Each once, that of stage 0 first.
std::vector<std::string> devices_of(const Rank& rank) {
  const auto stages = static_cast<std::size_t>(rank.topology().pp_size());
  std::vector<std::string> devices;
  for (auto& name : base::split_devices(rank.config().devices, stages)) {
    if (std::find(devices.begin(), devices.end(), name) == devices.end()) devices.push_back(name);
  }
  if (devices.empty()) devices.push_back(base::devices().front().name);
  return devices;
}

std::vector<partitioning::TracedModel> traced(const std::vector<const ModelDescription*>& models) {
  std::vector<partitioning::TracedModel> all;
  for (const auto* model : models) {
    all.push_back({&model->tree, &model->modules, &model->routed});
  }
  return all;
}

/// Runs of a step that has not begun, in copies of the process or, where that is allowed, on the
/// device in the process itself. Threads: the rank's.
class Attempts final : public server::StepEngine {
 public:
  Attempts(Rank& rank, const std::vector<const ModelDescription*>& models,
           const StepPreview& preview, const simulate::Machine::Sharers& sharers)
      : rank_(rank),
        preview_(preview),
        models_(models),
        on_device_(!rank.parts().device.is_cpu()),
        meta_(on_device_ ||
              std::any_of(models.begin(), models.end(),
                          [](auto* model) { return deferred::is_delayed(*model->modules[0]); })),
        tracer_(traced(models), rank.config().seed, devices_of(rank)) {
    rank_.set_trial(this);
    tp::TensorParallel::current().set_traffic_listener(
        [this, sharers](const tp::Traffic& forward, const tp::Traffic& backward) {
          tracer_.note_wait(sharers.seconds_for(forward.rounds, forward.bytes),
                            sharers.seconds_for(backward.rounds, backward.bytes));
        });
  }
  ~Attempts() override {
    tp::TensorParallel::current().set_traffic_listener(nullptr);
    rank_.set_trial(nullptr);
  }
  Attempts(const Attempts&) = delete;
  Attempts& operator=(const Attempts&) = delete;

  // server::StepEngine
  int current_microbatch() const noexcept override { return microbatch_; }
  std::optional<double> current_weight() const override {
    if (microbatch_ < 0) return std::nullopt;
    return preview_.weights.at(static_cast<std::size_t>(microbatch_));
  }
  /// Keeps only the graph, for a look at what it holds.
  void backward(const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>&,
                bool) override {
    tracer_.note_backward(roots);
    results_.insert(results_.end(), roots.begin(), roots.end());
  }

  /// Runs it with gradients, else as the step would, and without values with each answer that code
  /// may get which asks for one. A count is rarely 0, and an index may be.
  std::optional<Traces> run_any(bool grad) {
    std::optional<Traces> traces;
    for (const double value : {1.0, 0.0}) {
      assume(value);
      traces = run(true);
      if (!traces && !grad) traces = run(false);
      if (traces || !meta_) break;
    }
    return traces;
  }
  /// What is asked is which models the body uses, and nothing else.
  void look_only() noexcept { looks_only_ = true; }
  /// Goes on with shapes alone, if the body may have needed values that are on other ranks.
  /// @return whether it does
  bool go_on_without_values() {
    if (without_values_ || rank_.server().foreign().all().empty()) return false;
    return meta_ = without_values_ = true;
  }

  /// Goes on with values on the device, in this process, because shapes were not enough, if the
  /// program allows it (smp::trace_on_device()) and nothing stands in its way.
  /// @return whether it does
  bool go_on_on_device() {
    if (std::none_of(models_.begin(), models_.end(),
                     [](const auto* model) { return model->traced_on_device; })) {
      return false;
    }
    if (!on_device_) return false;
    no_device_ = why_not_on_device();
    if (!no_device_.empty()) return false;
    tell_of_device(rank_.parts().device, fault_);
    meta_ = false;
    return in_process_ = true;
  }

  /// Warns of what the traces lack, or why there are none.
  void warn(const std::optional<Traces>& traces) const {
    const bool clock = rank_.config().trace_repeats > 0;
    if (clock && !has_clock()) warn_of_clock(on_device_);
    if (!traces) return warn_of_failure(fault_, why_no_values(), any_slices(), no_device_);
    const bool timed = std::any_of(traces->begin(), traces->end(), [](const auto& trace) {
      return trace.source == simulate::CostSource::kMeasured;
    });
    if (clock && has_clock() && !timed) warn_of_repeats();
    warn_of_silent_nodes(*traces);
  }

 private:
  static constexpr int kMostQuestions = 10'000;  // in a loop that waits for another answer
  static constexpr char kTraced = 'T';
  static constexpr char kFailed = 'F';

  bool any_slices() const {
    return rank_.topology().tp_size() > 1 &&
           std::any_of(models_.begin(), models_.end(), [](const auto* model) {
             return !tp::SlicedParameters(*model->modules.front()).empty();
           });
  }

  /// What is timed are CPUs with values.
  bool has_clock() const noexcept { return !meta_ && !in_process_; }

  /// Returns why the trial cannot be run on the device; empty if it can.
  std::string why_not_on_device() const {
    for (const auto* model : models_) {
      if (deferred::is_delayed(*model->modules[0])) return "its initialisation is delayed";
      for (const auto& node : model->tree.nodes) {
        if (node.state_use == StateUse::kWatched) continue;
        return text_of(node.path) + " declares state, which a run in this process would change";
      }
    }
    if (rank_.server().foreign().all().empty()) return "";
    return "models that were placed before have values on other ranks";
  }

  /// Runs the step here, and puts back what can be.
  std::optional<Traces> run_in_process(bool grad) {
    std::vector<torch::nn::Module*> modules;
    for (const auto* model : models_) {
      modules.insert(modules.end(), model->modules.begin(), model->modules.end());
    }
    const partitioning::GradientGuard gradients(modules);
    const auto answer = run_here(grad);
    refuse_written_members();
    return taken(answer);
  }
  void refuse_written_members() const {
    if (written_.empty()) return;
    const auto& first = written_.front();
    throw UsageError(base::concat(
        "rank ", rank_.topology().rank(), ", ", text_of(first.path), ' ', first.what,
        ": the trial run on ", rank_.parts().device,
        ", which smp::trace_on_device() asks for, is one of this process and cannot put that back; "
        "let modules write nothing but registered parameters and buffers while "
        "smp::is_tracing(), or leave out smp::trace_on_device()"));
  }
  static std::string text_of(const std::string& path) {
    return base::concat("module '", path.empty() ? "<root>" : path, "'");
  }

  /// Runs the step in a copy of the process, so that nothing of the user's sees the trial.
  std::optional<Traces> run(bool grad) {
    if (in_process_) return run_in_process(grad);
    const auto child = in_child_process([&] { return run_here(grad); }, most_seconds());
    if (!child.answer) {
      fault_ = {fault_.module, "", base::concat("its trial process ", child.fault)};
      return std::nullopt;
    }
    return taken(*child.answer);
  }

  /// Returns the traces of what run_here() returned.
  std::optional<Traces> taken(std::string_view answer) {
    if (!answer.empty() && answer[0] == kTraced) {
      return partitioning::traces_from_bytes(answer.substr(1));
    }
    const auto path = answer.find('\0');
    SMP_ASSERT(path != std::string_view::npos, "an answer of ", answer.size(), " bytes");
    fault_ = {std::string(answer.substr(1, path - 1)), " threw",
              std::string(answer.substr(path + 1))};
    return std::nullopt;
  }

  /// Sets the value for whoever asks for one where there are only shapes.
  void assume(double value) {
    assumed_ = [this, value, count = 0]() mutable {
      SMP_REQUIRE_AS(UnsupportedError, ++count < kMostQuestions, "values were asked for ",
                     kMostQuestions, " times, and ", value, " was always the answer");
      tracer_.note_assumed(value);
      return value;
    };
  }

  /// Returns the limit of a trial run in seconds, since other ranks wait for the plan meanwhile.
  double most_seconds() const {
    const double limit = rank_.config().abort_seconds;
    return limit > 0 ? limit / 2 : 600;
  }

  /// Returns the traces as bytes, or the module that threw and what it said.
  std::string run_here(bool grad) {
    try {
      if (on_device_ && !in_process_) forget_device();
      if (without_values_) forget_foreign();
      const int repeats = has_clock() ? rank_.config().trace_repeats : 0;
      TrialResults results(preview_.traced, /*values=*/!meta_);
      if (looks_only_) {
        return kTraced + partitioning::traces_to_bytes(tracer_.run(bodies(grad, results), 0));
      }
      auto traces = run_and_watch_state(grad, results, repeats);
      // The trial draws the same random numbers each time.
      if (!meta_ && may_hide_state(traces) && results.changed()) {
        auto& state = traces.front().state;
        std::erase_if(state, [](const auto& change) { return change.module == 0; });
        state.push_back(
            {0, StateKind::kShared,
             "writes something that is no member: its results differ when it runs again"});
      }
      note_readers(traces, grad);
      if (is_evaluation()) note_state_of_training(traces, grad);
      return kTraced + partitioning::traces_to_bytes(traces);
    } catch (...) {
      return kFailed + tracer_.failed_module() + '\0' + server::text_of(std::current_exception());
    }
  }

  /// As the tracer's, and notes what stays written in this process.
  Traces run_and_watch_state(bool grad, TrialResults& results, int repeats) {
    const auto note = [this] {
      const auto& written = tracer_.written_members();
      written_.insert(written_.end(), written.begin(), written.end());
    };
    try {
      auto traces = tracer_.run_and_watch_state(bodies(grad, results), repeats);
      note();
      return traces;
    } catch (...) {
      note();
      throw;
    }
  }

  /// Parts of a model may be in evaluation mode for good.
  bool is_evaluation() const {
    return std::any_of(models_.begin(), models_.end(),
                       [](const auto* model) { return !model->modules.front()->is_training(); });
  }

  /// Adds what modules keep in training, which may come later. A body that cannot run so tells
  /// nothing.
  void note_state_of_training(Traces& traces, bool grad) {
    for (const auto* model : models_) model->modules.front()->train();
    try {
      TrialResults results(preview_.traced, /*values=*/!meta_);
      auto training = run_and_watch_state(grad, results, 0);
      note_readers(training, grad);
      for (std::size_t m = 0; m < traces.size(); ++m) {
        partitioning::add_state(traces[m].state, training[m].state);
      }
    } catch (const std::exception&) {
    }
  }

  /// What lives on other ranks has a shape, and no values.
  void forget_foreign() const {
    for (const auto& tensor : rank_.server().foreign().all()) deferred::give_shape_only(tensor);
  }

  /// Forgets values on the device and its generator, because a copy of the process must not even
  /// ask for them.
  void forget_device() const {
    base::set_random_device(at::kCPU);
    std::vector<at::Tensor> tensors;
    for (const auto* model : models_) {
      for (const auto& all : {model->modules[0]->parameters(), model->modules[0]->buffers()}) {
        std::copy_if(all.begin(), all.end(), std::back_inserter(tensors),
                     [](const at::Tensor& tensor) { return tensor.defined() && !tensor.is_cpu(); });
      }
    }
    deferred::forget_values(tensors);
  }

  /// Returns one body for each microbatch, whose runs note what they give.
  partitioning::Tracer::Bodies bodies(bool grad, TrialResults& results) {
    partitioning::Tracer::Bodies bodies;
    for (int i = 0; i < preview_.traced; ++i) {
      bodies.emplace_back([this, i, grad, &results] {
        auto returned = run_body(i, grad);
        results.note(i, results_);
        return returned;
      });
    }
    return bodies;
  }

  std::vector<at::Tensor> run_body(int microbatch, bool grad) {
    microbatch_ = microbatch;
    results_.clear();
    std::vector<at::Tensor> batch;
    auto returned = preview_.run(microbatch, grad, meta_ ? &assumed_ : nullptr, batch);
    tracer_.note_batch(batch);
    results_.insert(results_.end(), returned.begin(), returned.end());
    return returned;
  }

  /// Notes which modules read what others set in their members: on another rank they would find
  /// something else.
  void note_readers(Traces& traces, bool grad) {
    const auto& members = tracer_.kept_members();
    if (members.empty() || in_process_) return;  // these are refused, and would be hidden for good
    const base::SteadyClock clock;
    const auto seconds_since = [&](base::Nanoseconds time) {
      return static_cast<double>(clock.now() - time) / base::kSecond;
    };
    const auto begin = clock.now();
    const auto open = results_hiding({}, {}, grad, most_seconds());
    const double seconds = kMuchLonger * seconds_since(begin) + 1;
    partitioning::note_readers(
        members, tracer_.modules(), tracer_.trees(),
        [&](const auto& hidden, const auto& readers) {
          // Time is up: what could not be told apart counts as readers.
          if (seconds_since(begin) > most_seconds() / 2) return true;
          return results_hiding(hidden, readers, grad, seconds) != open;
        },
        traces);
  }

  /// Returns what a run gives with `members` hidden from `readers`, as bytes, or why it gives
  /// nothing.
  std::string results_hiding(const std::vector<partitioning::KeptMembers>& members,
                             const std::set<partitioning::ModelModule>& readers, bool grad,
                             double seconds) {
    const auto child = in_child_process(
        [&] {
          std::string bytes;
          for (int i = 0; i < preview_.traced; ++i) {
            tracer_.run_hiding([&] { return run_body(i, grad); }, members, readers);
            bytes += result_bytes(results_, /*values=*/!meta_);
          }
          return bytes;
        },
        seconds);
    return child.answer.value_or(child.fault);
  }

  /// True if no state was seen or declared that would explain results that differ.
  bool may_hide_state(const Traces& traces) const {
    return std::all_of(traces.begin(), traces.end(),
                       [](const auto& trace) {
                         return std::all_of(
                             trace.state.begin(), trace.state.end(),
                             [](const auto& change) { return change.kind == StateKind::kCache; });
                       }) &&
           std::all_of(models_.begin(), models_.end(), [](const auto* model) {
             const auto& nodes = model->tree.nodes;
             return std::all_of(nodes.begin(), nodes.end(), [](const auto& node) {
               return node.state_use == StateUse::kWatched;
             });
           });
  }

  /// Returns why the trial has shapes only; nullptr if it has values.
  const char* why_no_values() const {
    if (!meta_) return nullptr;
    if (on_device_) return "it computes on a device";
    return without_values_ ? "models that were placed before have values elsewhere"
                           : "its initialisation is delayed";
  }

  Rank& rank_;
  const StepPreview& preview_;
  const std::vector<const ModelDescription*>& models_;
  bool on_device_;  // which a copy of the process cannot use
  bool meta_;       // there are no values to compute with
  bool looks_only_ = false;
  bool without_values_ = false;                        // because some are on other ranks
  bool in_process_ = false;                            // on the device
  std::string no_device_;                              // why not, where it is asked for
  std::vector<partitioning::WrittenMembers> written_;  // that no run can put back
  std::function<double()> assumed_;
  partitioning::Tracer tracer_;
  int microbatch_ = 0;               // that runs
  std::vector<at::Tensor> results_;  // of the last run: what was returned or begins a backward pass
  TrialFault fault_;                 // of the last run that failed
};

}  // namespace

/// An evaluation is traced with gradients too: the plan is for training.
std::optional<Traces> trace_models(Rank& rank, const std::vector<const ModelDescription*>& models,
                                   const StepPreview& preview,
                                   const simulate::Machine::Sharers& sharers, bool costs_wanted) {
  Attempts attempts(rank, models, preview, sharers);
  auto traces = attempts.run_any(preview.grad);
  if (!traces && attempts.go_on_without_values()) traces = attempts.run_any(preview.grad);
  if (!traces && attempts.go_on_on_device()) traces = attempts.run_any(preview.grad);
  if (costs_wanted) attempts.warn(traces);
  return traces;
}

std::string used_models(Rank& rank, const std::vector<const ModelDescription*>& models,
                        const StepPreview& preview) {
  Attempts attempts(rank, models, preview, {});
  attempts.look_only();
  auto traces = attempts.run_any(preview.grad);
  if (!traces && attempts.go_on_without_values()) traces = attempts.run_any(preview.grad);
  std::string used(models.size(), '\1');
  for (std::size_t m = 0; traces && m < used.size(); ++m) {
    if (!(*traces)[m].used) used[m] = '\0';
  }
  return used;
}

bool is_tracing() noexcept {
  auto* rank = Rank::find_current();
  return rank != nullptr && rank->is_tracing();
}

}  // namespace smp
