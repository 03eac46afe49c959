// Writes a module tree and a trace as one would write a forward(): modules are declared, then
// called. For model_families.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/model_families.h"

namespace smp::partitioning {

/// A core with a good BLAS, and its memory.
constexpr double kOperationsPerSecond = 1e11;
constexpr double kMemoryBytesPerSecond = 1e10;
constexpr std::int64_t kFloatBytes = 4;

/// A module without calls of its own, and what a call of it does; sizes in floats.
struct Layer {
  int module = 0;
  double operations = 0;
  std::int64_t inputs = 0, outputs = 0, kept = 0;
};

class ModelWriter {
 public:
  ModelWriter() { model_.tree.add("", -1); }

  /// Declares a module with `elements` weights (0: none).
  int module(int parent, const std::string& name, std::int64_t elements = 0);
  /// A module that is never called, as ModuleList: it cannot leave its parent.
  int list(int parent, const std::string& name);
  /// Gives `module` the weight that `owner` registered.
  void tie(int module, int owner);

  /// `module` is called and computes until end(); what happens in between is its own.
  void begin(int module, std::int64_t inputs);
  void end(std::int64_t outputs, std::int64_t activations = 0);
  /// The module that is running computes by itself.
  void compute(double operations, std::int64_t bytes);

  /// A call of a module that makes none itself.
  void call(const Layer& layer);

  SyntheticModel take() &&;

 private:
  struct Running {
    int call = -1;
    double seconds = 0;  // since it began, or since its last call
  };

  SyntheticModel model_;
  std::vector<Running> running_{Running{}};
};

/// Declares a Linear layer over so many rows.
Layer linear(ModelWriter& write, int parent, const std::string& name, std::int64_t tokens,
             std::int64_t in, std::int64_t out);
/// A LayerNorm or BatchNorm.
Layer norm(ModelWriter& write, int parent, const std::string& name, std::int64_t tokens,
           std::int64_t width);
/// An activation, a dropout, a pooling: no weights.
Layer pointwise(ModelWriter& write, int parent, const std::string& name, std::int64_t size);

}  // namespace smp::partitioning
