// partition/state_watch.h: which modules of a traced model keep state: members, buffers or weights
// that a forward pass writes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "partition/tracer.h"

namespace smp::partitioning {

/// Compares the bytes of the user's part of every routed module wherever a call begins or ends, and
/// hears of operators that write. A module may fill a cache at its first call: what it writes
/// itself counts in the second run of the body only, what others write into it always. What members
/// own elsewhere is seen by its address and size, of vectors the elements too.
class StateWatch {
 public:
  explicit StateWatch(const std::vector<TracedModel>& models);

  /// Run number `run` of the body begins, counted from 0.
  void begin_run(int run);
  void end_run();

  // Module `module` of model `model`; -1: the body.
  void enter(int model, int module);
  void leave(int model, int module);
  /// Another call, or a backward pass, begins or ends while these run.
  void look(const std::vector<std::pair<int, int>>& running);

  /// An operator that `model`, `module` runs reads or writes `tensor`.
  void note_use(int model, int module, const at::Tensor& tensor, bool writes);
  /// Keeps the address of an operator's result from being used again.
  void keep_address(const at::Tensor& tensor);

  /// Of one model, by module, each once.
  std::vector<simulate::StateChange> changes(int model) const;

 private:
  struct Watched {
    OwnPart own;
    std::vector<char> bytes;  // as they were last seen
    bool plain = false;       // not routed
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
  };
  void compare(Watched& watched, bool own_call);
  void compare_parts(int model, int module);
  static std::vector<char> bytes_of_part(const OwnPart& own);

  std::vector<std::vector<Watched>> watched_;         // by model and module
  std::vector<std::vector<std::vector<int>>> parts_;  // not routed; by model and routed module
  std::unordered_multimap<const void*, Held> held_;   // by storage
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>> addresses_;
  int run_ = 0;
};

}  // namespace smp::partitioning
