// api/step/own_slices.h: what microbatches get of the arguments' values that their codecs slice
// (Codec<T>::slice, smp/codec.h). Threads: the rank's; runs code of the program.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string_view>
#include <vector>

#include "api/step/division.h"
#include "smp/step.h"

namespace smp {

class OwnSlices {
 public:
  /// Slices everything at once.
  /// @throws UsageError  what a codec threw, with the argument's name and the type
  OwnSlices(const std::vector<detail::StepArgument>& arguments, const Division& division,
            int microbatches);

  /// Returns the slices of an argument's values for one microbatch, in order.
  const std::vector<Packet>& of(std::size_t argument, int microbatch) const {
    return slices_[argument][static_cast<std::size_t>(microbatch)];
  }
  /// Returns their bytes.
  std::vector<std::string_view> bytes(std::size_t argument, int microbatch) const;
  /// True if the tensor, one of these, begins where one of another microbatch's slices does.
  bool is_common(const at::Tensor& tensor) const;

 private:
  void note_memory(int microbatch, const Packet& slice);

  std::vector<std::vector<std::vector<Packet>>> slices_;  // by argument, microbatch, value
  std::vector<std::pair<const void*, int>> memory_;       // where tensors begin, and whose they are
};

}  // namespace smp
