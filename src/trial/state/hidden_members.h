// trial/state/hidden_members.h: shows other code what a copy of a module on another rank would show
// it, so that a run of the body tells whether that code reads what the module keeps.
#pragma once

#include <cstddef>
#include <set>
#include <utility>
#include <vector>

#include "smp/state.h"

namespace smp::partitioning {

/// A model and a module of it; module 0, the model itself, stands for the step body too.
using ModelModule = std::pair<int, int>;

/// Members that a module's own calls write.
struct KeptMembers {
  ModelModule owner;  ///< routed; its call runs the code that writes
  OwnPart own;
  std::vector<char> before;    ///< the bytes of `own` before the first call: what other copies have
  bool always_change = false;  ///< by every call; else a cache: by the first, or with one value
};

/// Code that runs on behalf of one call, with what cannot leave it, would run on one rank. Of
/// `readers`, who is not the owner finds members as they were before the first call. While this
/// object lives; after it everything is as it was. Threads: one.
class HiddenMembers {
 public:
  HiddenMembers(std::vector<KeptMembers> members, std::set<ModelModule> readers);
  ~HiddenMembers();
  HiddenMembers(const HiddenMembers&) = delete;
  HiddenMembers& operator=(const HiddenMembers&) = delete;

  /// A call of `module` begins. `crosses`: it could be made on another rank than its caller.
  void enter(ModelModule module, bool crosses);
  /// The innermost call ends.
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
