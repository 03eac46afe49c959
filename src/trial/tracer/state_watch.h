// trial/tracer/state_watch.h: which modules of a traced model keep state: members, buffers or
// weights that a forward pass writes.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "trial/state/hidden_members.h"
#include "trial/state/owned_memory.h"
#include "trial/tracer/switch_watch.h"
#include "trial/tracer/tracer.h"

namespace smp::partitioning {

/// Finds modules that keep state. It compares the members of every module, and the memory that they
/// own, wherever a call begins or ends, and is told of operators that write. A module may fill a
/// cache at its first call: its own writes count only from the second run of the body on, writes of
/// others into it always.
class StateWatch {
 public:
  explicit StateWatch(const std::vector<TracedModel>& models);

  /// Tells that run number `run` of the body begins, counted from 0.
  void begin_run(int run);
  void end_run();

  // Module `module` of model `model`. Model -1: the body, whose own state is not watched; that its
  // results differ from run to run tells of it.
  void enter(int model, int module);
  void leave(int model, int module);
  /// Tells that another call, or a backward pass, begins or ends while the calls of `running`,
  /// (model, module), run: looks whether their members have changed.
  void look(const std::vector<std::pair<int, int>>& running);

  /// Tells that an operator that `model`, `module` runs reads or writes `tensor`.
  void note_use(int model, int module, const at::Tensor& tensor, bool writes);
  /// Tells the same of an operator that `module` calls itself: a tensor that nobody registered, and
  /// that no operator of this run has made, was kept from an earlier call.
  void note_kept(int model, int module, const at::Tensor& tensor, bool writes);
  /// Tells that an operator of `module` draws from `generator`. The first numbers of a call depend
  /// on what was drawn before, so the generator is state, unless the call has made or seeded it.
  /// Default generators do not count: they are exchanged for each call (base/random.h).
  void note_generator(int model, int module, const at::Generator& generator);
  /// Tells that a normalisation that `model`, `module` runs uses these statistics: in training mode
  /// it changes them, in evaluation mode it reads them.
  void note_normalisation(int model, int module, const at::Tensor& statistics, bool training);
  /// Tells that an operator returned `tensor`.
  void note_result(const at::Tensor& tensor);

  /// The members that modules of all models were seen to write, without those of modules whose
  /// state the program declares.
  std::vector<KeptMembers> kept_members() const;
  /// What modules were seen to write that is no parameter, buffer or mode: members, a tensor or a
  /// generator that they keep. Without modules whose state the program declares.
  std::vector<WrittenMembers> written_members() const;
  /// The modules of one model that keep state, in ascending order, each once.
  std::vector<simulate::StateChange> changes(int model) const;

 private:
  struct Watched {
    OwnPart own;
    std::vector<char> bytes;   // as they were last seen
    std::vector<char> before;  // its own first writing call; empty: there was none
    bool plain = false;        // not routed
    int depth = 0;
    bool changes = false;
    std::string what;
  };
  struct Held {
    int model;
    int module;  // that registered it
    int routed;  // whose call runs that module's code
    std::string name;
    bool normalises = false;
    bool written = false;
    bool by_others = false;  // read or written
    bool trains = false;     // of a normalisation: was called in either mode
    bool evaluates = false;
    bool called_apart = false;  // by other code than the call whose end commits its statistics
  };
  /// A generator that a module has drawn from.
  struct DrawnFrom {
    at::Generator generator;
    at::Tensor state;  // when its call in progress began; undefined: it has drawn since
  };
  void note_change(int model, int module, const char* what);
  void compare(Watched& watched, bool own_call);
  void compare_parts(int model, int module);
  std::vector<const Held*> held_by(int model) const;
  bool is_gradient(const c10::StorageImpl* memory) const;
  const RoutedBase* routed_root(int model) const;

  std::vector<TracedModel> models_;
  SwitchWatch switches_;
  OwnedMemory owned_;
  std::vector<std::vector<Watched>> watched_;         // by model and module
  std::vector<std::vector<std::vector<int>>> parts_;  // not routed; by model and routed module
  std::unordered_multimap<const void*, Held> held_;   // by storage
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>> addresses_;
  // Of one run, storages that no module holds: made by its operators, or found by them.
  std::unordered_set<const void*> created_;
  std::map<std::pair<int, int>, std::vector<DrawnFrom>> drawn_from_;  // by model and module
  std::unordered_map<const void*, c10::Storage> older_;  // kept: nothing new has their addresses
  int run_ = 0;
};

}  // namespace smp::partitioning
