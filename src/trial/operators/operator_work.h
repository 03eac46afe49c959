// trial/operators/operator_work.h: what a LibTorch operator has to do, and later its backward, from
// the shapes of its operands: the same for the same model on every machine, and on meta tensors.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>
#include <c10/util/ArrayRef.h>

#include <functional>
#include <vector>

#include "base/machine/device.h"

namespace smp::partitioning {

/// The work of one operator's forward, as far as it is known before its outputs are.
struct Work {
  double flops = 0;
  double bytes = 0;              ///< operands read
  double flops_per_element = 0;  ///< of the outputs
  double moves_per_byte = 1;     ///< of the outputs: 1: written; 2: also read from a table
  double draws_per_element = 0;  ///< random numbers per element of the outputs
};

/// The three ways in which an operator enters the sum of costs.
enum class Accounting : std::uint8_t {
  kFree,   ///< a view, or memory without values
  kOwn,    ///< as one; what it calls inside does not count
  kParts,  ///< LibTorch makes it of other operators, which count
};

/// The computation that an operator's backward performs for the operands that want gradients.
enum class Backward : std::uint8_t {
  kPerElement,  ///< one pass over the output's gradient, and over operands and their gradients
  kProducts,    ///< one product like the forward's for each
  kAttention,   ///< five products where the forward has two, as it computes the scores again
  kRecurrent,   ///< both products of every step at once
  kScatter,     ///< zeros as large as the table, to which rows are added
  kPassedOn,    ///< the gradient as it came; a sum for those that were broadcast
  kPadded,      ///< a view of a part: zeros as large as the operand, and the gradient
  kNone,        ///< nothing: another view, or none has a gradient
};

/// The properties of an operator that do not depend on its operands. They hold for the life of the
/// process.
struct OperatorKind {
  Accounting accounting = Accounting::kOwn;
  Work (*work)(c10::ArrayRef<const c10::IValue>) = nullptr;
  std::vector<int> written;  ///< arguments whose tensors it changes
  Backward backward = Backward::kPerElement;
  bool convolves = false;  ///< LibTorch has a setting of its own for the precision of these
};
OperatorKind kind_of(const c10::OperatorName& name);

/// The work of one kernel, with all sizes known.
struct Kernel {
  double flops = 0;
  double bytes = 0;
  base::Precision precision = base::Precision::kFloat32;
  bool for_weights = false;  ///< in backward: makes or adds up the gradient of a leaf
  double draws = 0;          ///< random numbers
};

/// The sizes of an operator's outputs, all together.
struct OutputSizes {
  double elements = 0;
  double bytes = 0;
  bool wants_gradient = false;  ///< some output leads back to a leaf that does
  base::Precision precision = base::Precision::kFloat32;  ///< of products
};

Kernel forward_kernel(const Work& work, const OutputSizes& outputs);
inline double seconds_on(const base::Device& device, const Kernel& kernel) {
  return device.seconds(kernel.flops, kernel.precision, kernel.bytes, kernel.draws);
}

/// The operands of an operator that want gradients, noted before it runs, while they can be read.
struct GradientWishes {
  struct Wish {
    double bytes = 0;
    bool leaf = false;       ///< a weight, or a view of one
    bool is_vector = false;  ///< at most one dimension
  };
  std::vector<Wish> wishes;
  Backward backward = Backward::kNone;
};
GradientWishes gradient_wishes(const OperatorKind& kind, c10::ArrayRef<const c10::IValue> inputs);

/// Visits the kernels of the backward, if there is one: those that compute the gradients of
/// operands and, for leaves, those that add them to the gradients of earlier microbatches.
void each_backward_kernel(const GradientWishes& wishes, const Kernel& forward,
                          const OutputSizes& outputs,
                          const std::function<void(const Kernel&)>& visit);

/// Visits the defined tensors of a value, also those inside lists.
void each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit);

/// The number of elements times the bytes of one: what an operator reads, also of an expanded
/// tensor, whose memory is smaller.
double bytes_of(const at::Tensor& tensor);

/// The precision in which products of that type are computed under LibTorch's present settings
/// (TF32 for matrix products or for convolutions).
base::Precision precision_of(at::ScalarType type, bool convolves);

}  // namespace smp::partitioning
