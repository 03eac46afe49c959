// tp/slices/slice_sharing.h: modules that would take a slice for a whole parameter.
#pragma once

#include <optional>
#include <string>

namespace torch::nn {
class Module;
}

namespace smp::tp {

/// A slice that a distributed module holds, and where it is registered again.
struct SharedSlice {
  std::string slice;      ///< path in the model
  std::string elsewhere;  ///< path in the model, of the same tensor
};

/// Returns the first slice in `model` that is also a parameter of a module which may not have it:
/// one that is neither below the distributed module that holds the slice, nor what that one stands
/// in for, nor holds it as the same slice itself. Threads: the rank's.
std::optional<SharedSlice> find_shared_slice(const torch::nn::Module& model);

}  // namespace smp::tp
