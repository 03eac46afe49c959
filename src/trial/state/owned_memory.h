// trial/state/owned_memory.h: what an object holds, directly and in what it owns, as bytes that two
// looks can be compared by.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "smp/state.h"

namespace torch::nn {
class Module;
}

namespace smp::partitioning {

/// Returns the whole object of a module of unknown type: what one allocation of std::make_shared
/// holds behind the reference counts. Empty if the module was made otherwise.
OwnPart whole_module(torch::nn::Module& module);

/// Collects the memory that modules own. Types are not known at run time, so it follows only what
/// cannot be mistaken: libstdc++'s vectors, strings, maps, sets, hash tables, lists and deques,
/// whose parts point back to their owner, and objects of a std::shared_ptr, by its counts. Tensors
/// and generators count by identity (trial/tracer/operator_notes.h is told of operators on them).
/// Other modules are not followed, nor are single pointers: a word that looks like one may be the
/// rest of a freed object, in a short string's unused room or behind the last member. Threads: one.
class OwnedMemory {
 public:
  /// Tells that `module` is watched on its own: pointers to it are not followed.
  void leave_out(torch::nn::Module& module);

  /// Returns the bytes of `own`, with zeros in place of torch::nn::Module's part, then the bytes
  /// that it owns. Empty if the module has no members.
  [[nodiscard]] std::vector<char> picture(const OwnPart& own) const;

 private:
  class Walk;
  bool is_left_out(std::uintptr_t address) const;

  std::map<std::uintptr_t, std::uintptr_t> modules_;  // begin, end
};

}  // namespace smp::partitioning
