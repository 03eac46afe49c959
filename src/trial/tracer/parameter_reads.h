// trial/tracer/parameter_reads.h: which module reads which weight and which buffer, to find those
// that several must share a stage for (paper App. C.2).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trial/tracer/tracer.h"

namespace smp::partitioning {

/// Records which modules read weights and buffers of other modules. A module that is not routed
/// counts as a part of the routed one above it.
class ParameterReads {
 public:
  explicit ParameterReads(const std::vector<TracedModel>& models);

  /// Notes that module `module` of model `model` (-1: the step body) reads `tensor`.
  void note(int model, int module, const at::Tensor& tensor);

  /// Notes that `tensor` is written, no matter by which module.
  void note_write(const at::Tensor& tensor);
  /// Notes that `tensor` is handed to module `module` as an argument, or returned to it. If it is a
  /// buffer, the module's reads of it do not count as reads of a foreign buffer, since it would
  /// travel there.
  void note_handed(int model, int module, const at::Tensor& tensor);
  /// Notes that `tensor` is the result of a call that `module` made: then the same holds for
  /// weights too. A module that gets a weight as an argument is still placed with it, because it is
  /// large.
  void note_returned(int model, int module, const at::Tensor& tensor);

  /// True if an operator got a weight or buffer of the model.
  [[nodiscard]] bool any_read(int model) const { return read_.at(static_cast<std::size_t>(model)); }
  /// Returns the reads of foreign weights in one model, each once, in order of module and
  /// parameter.
  std::vector<simulate::WeightUse> foreign_uses(int model) const;
  /// Returns the reads in one model of foreign buffers that are written or larger than
  /// kSmallBuffer, and the buffers that are written and held by several modules; in order of
  /// registration and module.
  std::vector<simulate::BufferUse> buffer_uses(int model) const;

 private:
  struct Parameter {
    int model;
    int number;                              // in ModuleTree::parameters
    std::set<int> holders;                   // the routed modules it belongs to
    std::set<std::pair<int, int>> returned;  // model and module that a call returned it to
  };
  struct Buffer {
    int model;
    int first_holder;
    std::string name;
    std::int64_t bytes;
    const void* memory;
    std::set<int> holders;
    std::set<int> readers = {};
    std::set<std::pair<int, int>> handed = {};  // (model, module)
  };
  void add_buffer(int model, int holder, const std::string& name, const at::Tensor& tensor);

  std::unordered_map<const void*, Parameter> parameters_;  // by TensorImpl
  std::vector<Buffer> buffers_;
  std::unordered_map<const void*, std::size_t> buffer_numbers_;  // by TensorImpl
  std::set<const void*> written_;                                // memory
  std::vector<std::set<std::pair<int, int>>> uses_;              // by model: (module, parameter)
  std::vector<bool> read_;                                       // by model
};

}  // namespace smp::partitioning
