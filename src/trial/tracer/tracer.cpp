// trial/tracer/tracer.cpp: one run of the body, watched.
#include "trial/tracer/tracer.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/machine/device.h"
#include "base/random.h"
#include "base/work_clock.h"
#include "module/call_handler.h"
#include "simulate/device_profile.h"
#include "trial/operators/operator_watch.h"
#include "trial/operators/write_guard.h"
#include "trial/trace_median.h"
#include "trial/tracer/operator_notes.h"
#include "trial/tracer/parameter_reads.h"
#include "trial/tracer/state_watch.h"
#include "trial/tracer/traced_run.h"

namespace smp::partitioning {
namespace {

std::int64_t total_bytes(const std::vector<at::Tensor>& tensors) {
  std::int64_t bytes = 0;
  for (const auto& tensor : tensors) {
    if (tensor.defined()) bytes += static_cast<std::int64_t>(bytes_of(tensor));
  }
  return bytes;
}

std::vector<torch::nn::Module*> all_modules(const std::vector<TracedModel>& models) {
  std::vector<torch::nn::Module*> all;
  for (const auto& model : models) {
    all.insert(all.end(), model.modules->begin(), model.modules->end());
  }
  return all;
}

std::unordered_set<const void*> weight_storages(const std::vector<TracedModel>& models) {
  std::unordered_set<const void*> storages;
  auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.has_storage()) {
      storages.insert(tensor.storage().unsafeGetStorageImpl());
    }
  };
  for (const auto* module : all_modules(models)) {
    for (const auto& tensor : module->parameters(/*recurse=*/false)) add(tensor);
    for (const auto& tensor : module->buffers(/*recurse=*/false)) add(tensor);
  }
  return storages;
}

std::vector<const ModuleTree*> trees_of(const std::vector<TracedModel>& models) {
  std::vector<const ModuleTree*> trees;
  trees.reserve(models.size());
  for (const auto& model : models) trees.push_back(model.tree);
  return trees;
}

std::vector<const base::Device*> found_devices(const std::vector<std::string>& names) {
  std::vector<const base::Device*> devices;
  for (const auto& name : names) {
    devices.push_back(base::find_device(name));
    SMP_ASSERT(devices.back() != nullptr, "no device ", name);
  }
  SMP_ASSERT(!devices.empty());
  return devices;
}

/// The share of the time since the clock began that the thread spent on a core, 0.01 to 1.
double processor_share(base::WorkClock& clock) {
  constexpr double kLeast = 0.01;  // what waits takes some of a core as well
  const auto worked = static_cast<double>(clock.now());
  const auto on_core = static_cast<double>(clock.on_core());
  return worked <= 0 ? 1 : std::clamp(on_core / worked, kLeast, 1.0);
}

}  // namespace

struct Tracer::Known {
  int model;
  int module;
  bool crosses;  // its calls can be packed
};

struct Tracer::State {
  std::vector<TracedModel> models;
  std::uint64_t key;
  std::unordered_map<const RoutedBase*, Known> known;
  std::vector<std::pair<RoutedBase*, RoutedBase::Place>> places;  // of its modules, before
  ParameterReads reads;
  std::optional<StateWatch> states;
  std::vector<KeptMembers> kept;
  std::vector<WrittenMembers> stays;
  WriteGuard::Written written;  // as the watched runs saw
  std::optional<HiddenMembers> hidden;
  std::string failed_module;
  std::map<std::pair<int, int>, double> assumed;  // by model and module that asked

  std::vector<const base::Device*> devices;
  /// The times that calls would wait for other ranks: by microbatch, by model, by interval.
  std::vector<std::vector<std::vector<simulate::IntervalTimes>>> waits;
  base::WorkClock clock;                   // of timed runs
  std::optional<TracedRun> run;            // the one that goes on
  std::vector<const RoutedBase*> running;  // innermost last

  State(std::vector<TracedModel> traced, std::vector<const base::Device*> priced)
      : models(std::move(traced)), reads(models), devices(std::move(priced)) {}

  bool watches_state() const {
    return states && (run->takes_sizes() || run->watching() == Watching::kState);
  }
  void look_at_running() {
    std::vector<std::pair<int, int>> modules;
    for (const auto* module : running) {
      const Known& known_module = known.at(module);
      modules.emplace_back(known_module.model, known_module.module);
    }
    states->look(modules);
  }
};

/// A call that runs; the destructor ends it, also when an exception leaves it.
class Tracer::RunningCall {
 public:
  RunningCall(Tracer& tracer, RoutedBase& module, std::int64_t input_bytes)
      : tracer_(tracer), module_(module), exceptions_(std::uncaught_exceptions()) {
    auto& state = *tracer_.state_;
    auto& run = *state.run;
    const TracedRun::Bookkeeping own(run);
    const Reading now = run.now();  // what follows is nobody's
    const Known& known = state.known.at(&module);
    if (state.watches_state()) {
      state.look_at_running();
      state.states->enter(known.model, known.module);
    }
    if (state.hidden) state.hidden->enter({known.model, known.module}, known.crosses);
    run.calls().begin(known.model, known.module, input_bytes, now);
    state.running.push_back(&module);
    run.live().begin(run.calls().current());
  }
  ~RunningCall() {
    auto& state = *tracer_.state_;
    auto& run = *state.run;
    const TracedRun::Bookkeeping own(run);
    if (std::uncaught_exceptions() > exceptions_ && state.failed_module.empty()) {
      state.failed_module = module_.smp_place.path;
    }
    run.calls().end(output_bytes_, run.now());
    state.running.pop_back();
    const Known& known = state.known.at(&module_);
    if (state.hidden) state.hidden->leave(known.crosses);
    if (state.watches_state()) {
      state.states->leave(known.model, known.module);
      state.look_at_running();
    }
    run.live().end(run.calls().current());
  }
  RunningCall(const RunningCall&) = delete;
  RunningCall& operator=(const RunningCall&) = delete;

  void set_output_bytes(std::int64_t bytes) { output_bytes_ = bytes; }

 private:
  Tracer& tracer_;
  RoutedBase& module_;
  int exceptions_;
  std::int64_t output_bytes_ = 0;
};

/// Takes what the watched runs saw, also where a body threw.
class Tracer::WatchEnd {
 public:
  explicit WatchEnd(State& state) : state_(state) {}
  ~WatchEnd() {
    state_.kept = state_.states->kept_members();
    state_.stays = state_.states->written_members();
    state_.states.reset();
  }
  WatchEnd(const WatchEnd&) = delete;
  WatchEnd& operator=(const WatchEnd&) = delete;

 private:
  State& state_;
};

// ---- life --------------------------------------------------------------------------------------

/// While the tracer lives, its modules count as placed, each with an owner of its own; those that
/// another model has placed already too.
Tracer::Tracer(std::vector<TracedModel> models, std::uint64_t seed,
               const std::vector<std::string>& devices)
    : state_(std::make_unique<State>(std::move(models), found_devices(devices))) {
  state_->key = base::mix_key(seed, "<trace>");
  for (int m = 0; m < static_cast<int>(state_->models.size()); ++m) {
    const auto& model = state_->models[m];
    for (int i = 0; i < static_cast<int>(model.routed->size()); ++i) {
      auto* routed = (*model.routed)[i];
      if (routed == nullptr) continue;
      state_->known[routed] = {m, i, routed->smp_cannot_cross().empty()};
      state_->places.emplace_back(routed, routed->smp_place);
      routed->smp_place = {-1, PpRank(0), model.tree->nodes[i].path};
    }
  }
}

Tracer::~Tracer() {
  for (auto place = state_->places.rbegin(); place != state_->places.rend(); ++place) {
    place->first->smp_place = place->second;
  }
}

/// The second watched run tells what every call changes from caches that the first run filled.
/// Timed runs are not watched: to look at all members around every call takes many times as long as
/// a small module, and leaves it a cold cache.
std::vector<simulate::Trace> Tracer::run_and_watch_state(const Bodies& bodies, int repeats) {
  auto& states = state_->states.emplace(state_->models);
  const WatchEnd end(*state_);
  auto traces = run(bodies, repeats);
  for (int i = 0; i < static_cast<int>(bodies.size()); ++i) {
    states.begin_run(1);
    run_once(bodies[i], i, Watching::kState);
    states.end_run();
  }
  for (std::size_t m = 0; m < traces.size(); ++m) {
    traces[m].state = states.changes(static_cast<int>(m));
  }
  return traces;
}

const std::vector<KeptMembers>& Tracer::kept_members() const { return state_->kept; }

const std::vector<WrittenMembers>& Tracer::written_members() const { return state_->stays; }

void Tracer::run_hiding(const Body& body, const std::vector<KeptMembers>& members,
                        const std::set<ModelModule>& readers) {
  state_->hidden.emplace(members, readers);
  run_once(body, 0, Watching::kNothing);
  state_->hidden.reset();
}

std::vector<const ModuleTree*> Tracer::trees() const { return trees_of(state_->models); }

std::set<ModelModule> Tracer::modules() const {
  std::set<ModelModule> all;
  for (int m = 0; m < static_cast<int>(state_->models.size()); ++m) all.emplace(m, 0);
  for (const auto& [module, known] : state_->known) all.emplace(known.model, known.module);
  return all;
}

std::vector<simulate::Trace> Tracer::run(const Bodies& bodies, int repeats) {
  auto microbatches = take_sizes(bodies);
  state_->clock = {};
  for (std::size_t i = 0; i < microbatches.size(); ++i) {
    take_times(bodies[i], static_cast<int>(i), repeats, microbatches[i]);
  }
  auto traces = joined(std::move(microbatches));
  add_waits(traces);
  const double share = repeats > 0 ? processor_share(state_->clock) : 1;
  for (auto& trace : traces) trace.processor_share = share;
  return traces;
}

/// Adds the times that calls would wait for messages, once compute times are known: messages take
/// as long on every device, and the clock of one process does not see them.
void Tracer::add_waits(Traces& traces) const {
  for (std::size_t m = 0; m < traces.size(); ++m) {
    auto& trace = traces[m];
    for (std::size_t i = 0; i < trace.num_traced(); ++i) {
      simulate::add_times(i == 0 ? trace : trace.others[i - 1], state_->waits[i][m]);
    }
  }
}

/// Runs each microbatch once and returns its traces; only those of the first one if all do the
/// same.
std::vector<Tracer::Traces> Tracer::take_sizes(const Bodies& bodies) {
  auto& states = state_->states;
  state_->waits.clear();
  std::vector<Traces> microbatches;
  bool all_alike = true;
  for (int i = 0; i < static_cast<int>(bodies.size()); ++i) {
    if (states) states->begin_run(0);
    microbatches.push_back(run_once(bodies[i], i, Watching::kSizes));
    if (states) states->end_run();
    const auto goes_as = [](const auto& one, const auto& other) { return one.goes_as(other); };
    all_alike &= std::equal(microbatches[i].begin(), microbatches[i].end(),
                            microbatches.front().begin(), goes_as);
  }
  if (all_alike) microbatches.resize(1);
  return microbatches;
}

/// Runs the body `repeats` times more and sets the times of `traces` to the medians.
void Tracer::take_times(const Body& body, int microbatch, int repeats, Traces& traces) {
  std::vector<std::vector<simulate::Trace>> timed(traces.size());
  for (int i = 0; i < repeats; ++i) {
    auto again = run_once(body, microbatch, Watching::kClock);
    for (std::size_t m = 0; m < traces.size(); ++m) timed[m].push_back(std::move(again[m]));
  }
  for (std::size_t m = 0; m < traces.size(); ++m) {
    traces[m] = with_median_times(std::move(traces[m]), timed[m]);
  }
}

/// Joins the traces of all microbatches to one per model, and adds what does not depend on the
/// microbatch.
Tracer::Traces Tracer::joined(std::vector<Traces> microbatches) const {
  Traces traces = std::move(microbatches.front());
  for (std::size_t m = 0; m < traces.size(); ++m) {
    for (std::size_t i = 1; i < microbatches.size(); ++i) {
      traces[m].others.push_back(std::move(microbatches[i][m]));
    }
    simulate::share_device_speeds(traces[m]);
    traces[m].foreign_uses = state_->reads.foreign_uses(static_cast<int>(m));
    traces[m].buffer_uses = state_->reads.buffer_uses(static_cast<int>(m));
    traces[m].used = !traces[m].calls_nothing() || state_->reads.any_read(static_cast<int>(m));
    for (const auto& [asker, value] : state_->assumed) {
      if (asker.first == static_cast<int>(m)) traces[m].assumed.push_back({asker.second, value});
    }
  }
  return traces;
}

/// Runs the body once and returns one trace per model. In a run whose operators are not watched,
/// the tensors that watched runs wrote are put back too: it draws the same random numbers, so it
/// writes the same ones.
Tracer::Traces Tracer::run_once(const Body& body, int microbatch, Watching watching) {
  auto& state = *state_;
  state.failed_module.clear();
  state.running.clear();
  auto& run =
      state.run.emplace(trees_of(state.models), state.devices, watching, state.clock, state.reads);
  WriteGuard guard(all_modules(state.models), state.written);
  {
    const base::FiberLocalScope<CallHandler> handler(module::call_handler(), this);
    const base::RandomScope random(
        base::mix_key(state.key, static_cast<std::uint64_t>(microbatch)));
    OperatorNotes notes(run.calls(), guard);
    if (run.takes_sizes()) notes.note_costs(run.meter(), state.reads, run.live());
    if (state.watches_state()) notes.note_state(*state.states);
    std::optional<OperatorWatch> watch;
    if (notes.are_wanted()) watch.emplace(notes);
    run.live().keep_graph(body());
    run.calls().finish(run.now());
  }
  state.written = guard.written();
  if (run.takes_sizes()) note_sizes();
  auto traces = std::move(run.calls().traces());
  state.run.reset();
  return traces;
}

/// Fills in what is known from the operators that ran: bytes, and times on other devices.
void Tracer::note_sizes() {
  auto& state = *state_;
  auto& calls = state.run->calls();
  auto& traces = calls.traces();
  state.run->live().account(weight_storages(state.models), traces);
  auto& waits = state.waits.emplace_back();
  for (std::size_t m = 0; m < traces.size(); ++m) {
    waits.push_back(calls.times_on(static_cast<int>(m), state.devices.size()));
    traces[m].device = state.devices.front()->name;
    for (std::size_t d = 1; d < state.devices.size(); ++d) {
      traces[m].profiles.push_back(simulate::profile_of(traces[m], state.devices[d]->name,
                                                        calls.times_on(static_cast<int>(m), d)));
    }
  }
}

void Tracer::note_wait(double forward_seconds, double backward_seconds) {
  state_->run->note_wait(forward_seconds, backward_seconds);
}

void Tracer::note_backward(const std::vector<at::Tensor>& roots) {
  state_->run->note_backward(roots);
}

void Tracer::note_batch(const std::vector<at::Tensor>& tensors) {
  state_->run->live().note_batch(tensors);
}

void Tracer::note_assumed(double value) {
  const auto& calls = state_->run->calls();
  state_->assumed[{calls.current().model, calls.current_module()}] = value;
}

const std::string& Tracer::failed_module() const { return state_->failed_module; }

// ---- calls -------------------------------------------------------------------------------------

/// Answers as if every module lived elsewhere, so that exactly the tensors are seen that would
/// travel.
Tracer::Where Tracer::where(const RoutedBase& module) {
  const auto found = state_->known.find(&module);
  if (found == state_->known.end()) return Where::kPlain;
  return found->second.crosses ? Where::kRemote : Where::kHere;
}

void Tracer::enter(RoutedBase& module, Space& space) {
  static_assert(sizeof(RunningCall) <= sizeof(Space));
  new (space.bytes) RunningCall(*this, module, 0);
}

void Tracer::leave(Space& space) noexcept {
  std::launder(reinterpret_cast<RunningCall*>(space.bytes))->~RunningCall();
}

std::optional<Packet> Tracer::call(RoutedBase& module, const CallEntry& entry, PpRank,
                                   Packet&& arguments, const CallTraits&) {
  auto& run = *state_->run;
  const bool sizes = run.takes_sizes();
  if (sizes) run.note_passed(arguments.tensors);
  auto result = [&] {
    RunningCall running(*this, module, total_bytes(arguments.tensors));
    if (sizes) {
      run.note_handed(arguments.tensors, /*returned=*/false);
      run.live().note_arguments(arguments.tensors);
    }
    auto returned = entry.run(module, arguments);
    running.set_output_bytes(total_bytes(returned.tensors));
    if (sizes) run.note_result(returned.tensors);
    return returned;
  }();
  const TracedRun::Bookkeeping own(run);
  run.live().keep_graph(result.tensors);
  if (!sizes) return result;
  run.note_handed(result.tensors, /*returned=*/true);
  run.live().note_results(result.tensors);
  return result;
}

}  // namespace smp::partitioning
