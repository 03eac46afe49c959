// trial/tracer/tracer.h: runs a step body for some microbatches in place of a step and notes what
// each module costs (paper App. C.1).
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "partition/model/module_tree.h"
#include "simulate/trace.h"
#include "smp/detail/call.h"
#include "trial/state/hidden_members.h"

namespace smp::partitioning {

enum class Watching;  // trial/tracer/traced_run.h

/// A model and the objects behind its tree. The vectors have the indices of ModuleTree::nodes.
struct TracedModel {
  const ModuleTree* tree;
  const std::vector<torch::nn::Module*>* modules;
  const std::vector<RoutedBase*>* routed;  ///< nullptr where a module is not routed
};

/// A module that wrote what no run can put back.
struct WrittenMembers {
  std::string path;  ///< of the module; empty: the model itself
  std::string what;  ///< "writes its members, from byte 8 of 16"
};

/// Serves the calls of one fiber: each runs at once and is noted down. Modules that are not routed
/// count for the routed one above them. Nothing of the models changes, nor does the caller's random
/// state. Threads: the rank's; the body must not suspend.
class Tracer final : public CallHandler {
 public:
  /// A step body. Returns its results, or other tensors that lead back to the graph it made.
  using Body = std::function<std::vector<at::Tensor>()>;
  /// One body per microbatch, at least one.
  using Bodies = std::vector<Body>;

  /// @param models   not placed yet; they must outlive the tracer.
  /// @param seed     the seed of the random numbers that the body draws.
  /// @param devices  for which operators are priced (base/machine/device.h), each once: the trace's
  /// own
  ///                 times are those of the first, and it has a profile of each other.
  Tracer(std::vector<TracedModel> models, std::uint64_t seed,
         const std::vector<std::string>& devices = {"cpu"});
  ~Tracer() override;

  /// Runs each body and returns one trace per model. If not all bodies did the same, the traces of
  /// the further microbatches are in its `others`. With `repeats` 0, times are estimated from the
  /// operators that run; else a body runs once and then `repeats` times more, and each time is the
  /// median of the readings of base::WorkClock. @throws whatever a body throws
  std::vector<simulate::Trace> run(const Bodies& bodies, int repeats);
  /// Does what run() does, then runs the bodies once more to see which modules keep state
  /// (trial/tracer/state_watch.h). Members that modules write are not put back, so that the process
  /// should end afterwards, or written_members() be empty.
  std::vector<simulate::Trace> run_and_watch_state(const Bodies& bodies, int repeats);

  /// The members that modules write, as run_and_watch_state() saw them.
  const std::vector<KeptMembers>& kept_members() const;
  /// What the last run_and_watch_state() saw that stays written, also if it threw.
  const std::vector<WrittenMembers>& written_members() const;
  std::vector<const ModuleTree*> trees() const;
  /// The modules whose calls can be seen; module 0 of a model stands for the body.
  std::set<ModelModule> modules() const;
  /// Runs `body` while `members` are hidden from `readers` (trial/state/hidden_members.h). A module
  /// that reads them gets other results, or crashes, so that the process should end afterwards.
  void run_hiding(const Body& body, const std::vector<KeptMembers>& members,
                  const std::set<ModelModule>& readers);

  /// Notes that the backward of `roots` would follow here in a step; keeps their graph until it was
  /// looked at.
  void note_backward(const std::vector<at::Tensor>& roots);
  /// Notes the arguments of the body, which are there anyway: only copies on other ranks take
  /// memory.
  void note_batch(const std::vector<at::Tensor>& tensors);
  /// Notes that the module that runs, or the body, would wait so long for other ranks in a step.
  void note_wait(double forward_seconds, double backward_seconds);
  /// Notes that the module that runs, or the body, asked for the value of a tensor and was given
  /// `value`.
  void note_assumed(double value);
  /// The module that threw what left the body; empty for the body itself or the model.
  const std::string& failed_module() const;

  // CallHandler
  Where where(const RoutedBase& module) override;
  bool in_step() const noexcept override { return true; }
  bool joins(const RoutedBase&, const RoutedBase&) override { return false; }
  void enter(RoutedBase& module, Space& space) override;
  void leave(Space& space) noexcept override;
  std::optional<Packet> call(RoutedBase& module, const CallEntry& entry, PpRank owner,
                             Packet&& arguments, const CallTraits& traits) override;

 private:
  struct Known;
  struct State;
  class RunningCall;
  class WatchEnd;

  using Traces = std::vector<simulate::Trace>;  // one a model
  Traces run_once(const Body& body, int microbatch, Watching watching);
  std::vector<Traces> take_sizes(const Bodies& bodies);
  void take_times(const Body& body, int microbatch, int repeats, Traces& traces);
  Traces joined(std::vector<Traces> microbatches) const;
  void note_sizes();
  void add_waits(Traces& traces) const;

  std::unique_ptr<State> state_;
};

}  // namespace smp::partitioning
