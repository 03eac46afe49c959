// partition/operator_work.h: what a LibTorch operator has to do, from the shapes of its operands: a
// roofline with fixed numbers, so that the same model costs the same on every machine.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>
#include <c10/util/ArrayRef.h>

#include <functional>
#include <vector>

namespace smp::partitioning {

/// Known before the operator ran, but for its outputs.
struct Work {
  double flops = 0;
  double bytes = 0;              ///< operands read
  double flops_per_element = 0;  ///< of the outputs
  double moves_per_byte = 1;     ///< of the outputs: written, and read from a table if 2
};

/// How an operator enters the sum.
enum class Accounting : std::uint8_t {
  kFree,   ///< a view, or memory without values
  kOwn,    ///< as one; what it calls inside does not count
  kParts,  ///< LibTorch makes it of other operators, which count
};

/// What an operator is, whatever its operands. Valid for the life of the process.
struct OperatorKind {
  Accounting accounting = Accounting::kOwn;
  Work (*work)(c10::ArrayRef<const c10::IValue>) = nullptr;
  std::vector<int> written;  ///< arguments whose tensors it changes
};
OperatorKind kind_of(const c10::OperatorName& name);

/// Seconds of one operator with outputs of that size.
double seconds_of(const Work& work, double output_elements, double output_bytes);

/// Visits the defined tensors of a value, in lists too.
void each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit);

/// Elements times the size of one: what an operator reads, also of an expanded tensor.
double bytes_of(const at::Tensor& tensor);

}  // namespace smp::partitioning
