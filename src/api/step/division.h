// api/step/division.h: which tensors and lists of a step's arguments have the rows of the batch,
// and so are split (smp::step(); docs/what_is_equal.md, Arguments of a step).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "schedule/split_step.h"
#include "smp/step.h"

namespace smp {

/// What becomes of one tensor of the arguments.
struct TensorCut {
  detail::Cut cut = detail::Cut::kWhole;
  int axis = 0;          ///< of Cut::kAxis, not negative
  std::int64_t row = 0;  ///< of Cut::kEntries: the row that the tensor is of
};

/// A value whose Codec says what a microbatch gets of it.
struct OwnPlace {
  const detail::OutlinePart* place = nullptr;
  std::string path;  ///< "1.images"
};

/// The division of a step's arguments. Threads: any; reads no values of tensors.
class Division {
 public:
  /// @param arguments  must outlive this object
  /// @param several    there are several microbatches; else nothing can be divided wrongly
  /// @param seen       what became of containers in earlier calls of the step; what this call tells
  ///                   of more is added
  /// @throws UsageError  arguments that differ in rows, have none, or may be meant in two ways; an
  ///                     axis that does not exist
  Division(const std::vector<detail::StepArgument>& arguments, const StepOptions& options,
           bool several, detail::SeenCuts& seen);

  /// Number of rows of the batch; -1 if nothing is split.
  std::int64_t rows() const noexcept { return rows_; }
  const TensorCut& cut(std::size_t argument, std::size_t tensor) const {
    return cuts_[argument][tensor];
  }
  /// Returns the values in an argument that their codecs slice, in order.
  const std::vector<OwnPlace>& own(std::size_t argument) const { return own_[argument]; }
  /// Returns the bytes of an argument in which lists that are split have the entries of these rows
  /// alone, and values that their codecs slice are the bytes `own`, one each; without them they are
  /// left out.
  std::string bytes(std::size_t argument, MicrobatchRows rows,
                    const std::vector<std::string_view>& own = {}) const;

  /// Returns what becomes of each argument, and of its parts, in words.
  const std::vector<schedule::SplitArgument>& told() const noexcept { return told_; }
  /// Returns a warning for each argument that all microbatches get whole only because nobody can
  /// take it apart or say how many rows there are, and for names in the options that name nothing.
  const std::vector<std::string>& doubtful() const noexcept { return doubtful_; }

 private:
  const std::vector<detail::StepArgument>& arguments_;
  std::int64_t rows_ = -1;
  std::vector<std::vector<TensorCut>> cuts_;                      // by argument and tensor
  std::vector<std::vector<const detail::OutlinePart*>> divided_;  // by argument, in order
  std::vector<std::vector<OwnPlace>> own_;                        // by argument, in order
  std::vector<schedule::SplitArgument> told_;
  std::vector<std::string> doubtful_;
};

}  // namespace smp
