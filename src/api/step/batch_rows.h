// api/step/batch_rows.h: how many rows the batch of a step has. Threads: any.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "api/step/argument_parts.h"

namespace smp {

/// The rows of a batch: those of the tensors that are no entries of lists, and those that codecs
/// count; else those that the options name, else the only number that fits each list of tensors.
class BatchRows {
 public:
  /// @param seen     what became of lists in earlier calls
  /// @param several  there are several microbatches; else lists that may be meant in two ways count
  ///                 as having no rows
  /// @throws UsageError  parts differ in rows, have none, or fit several numbers
  BatchRows(const ArgumentParts& parts, const detail::SeenCuts& seen, bool several);

  /// -1: nothing has rows.
  std::int64_t count() const noexcept { return count_; }
  /// Returns the part whose rows these are, as "argument 0.x".
  const std::string& origin() const noexcept { return origin_; }

  /// True if lists of tensors alone tell them, and their looks decided.
  bool by_looks() const noexcept { return by_looks_; }

  /// True if each tensor of a container has the rows of the batch, or is in a list that has.
  bool fit_members(const ArgumentPart& container) const;

 private:
  using Fit = std::set<std::int64_t>;  ///< the numbers of rows that would fit

  void take(const ArgumentPart& part, std::int64_t rows);
  void take_of_tensors();
  void take_of_codecs();
  void take_of_options();
  void take_of_lists();
  Fit fit_tensors(const ArgumentPart& part) const;
  Fit fit_list(const ArgumentPart& list) const;
  Fit fit_container(const ArgumentPart& container) const;
  Fit fit_as_seen(const ArgumentPart& list) const;
  bool is_of_a_row(const ArgumentPart& part) const;
  bool has_list_beside(const ArgumentPart& list) const;

  const ArgumentParts& parts_;
  const detail::SeenCuts& seen_;
  const bool several_;
  std::int64_t count_ = -1;
  std::string origin_;
  bool by_looks_ = false;
};

}  // namespace smp
