// trial/state/hidden_members.h: shows other code what a copy of a module on another rank would show
// it, so that a run of the body tells whether that code reads what the module keeps.
#pragma once

#include <cstddef>
#include <set>
#include <utility>
#include <vector>

#include "smp/state.h"

namespace smp::partitioning {

/// The index of a model and of a module in its tree; module 0, the model itself, stands for the
/// step body too.
using ModelModule = std::pair<int, int>;

/// The members of one module that its own calls write.
struct KeptMembers {
  ModelModule owner;  ///< routed; its call runs the code that writes
  OwnPart own;
  std::vector<char> before;    ///< the bytes of `own` before the first call: what other copies have
  bool always_change = false;  ///< by every call; else a cache: by the first, or with one value
};

/// While this object lives, code that includes one of `readers` but not the members' owner finds
/// the members as they were before the owner's first call. A call, with the calls in it that cannot
/// cross ranks, is one piece of code, since all of it would run on one rank. The destructor
/// restores everything. Threads: one.
class HiddenMembers {
 public:
  HiddenMembers(std::vector<KeptMembers> members, std::set<ModelModule> readers);
  ~HiddenMembers();
  HiddenMembers(const HiddenMembers&) = delete;
  HiddenMembers& operator=(const HiddenMembers&) = delete;

  /// Tells that a call of `module` begins.
  /// @param crosses  the call could run on another rank than its caller
  void enter(ModelModule module, bool crosses);
  /// Tells that the innermost call ends. @param crosses  as for its enter()
  void leave(bool crosses);

 private:
  using Code = std::vector<ModelModule>;  // what runs as one
  struct Hidden {
    KeptMembers members;
    std::vector<std::size_t> words;  // offsets of those that changed
    bool shown = true;
  };
  void show();
  static void show(Hidden& hidden, bool wanted);

  std::set<ModelModule> readers_;
  std::vector<Hidden> hidden_;
  std::vector<Code> running_;  // innermost last; the first is the body
};

}  // namespace smp::partitioning
