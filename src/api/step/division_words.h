// api/step/division_words.h: what becomes of a step's arguments, for the log and for reports.
// Threads: any.
#pragma once

#include <cstddef>
#include <string>
#include <typeinfo>
#include <vector>

#include "api/step/argument_parts.h"
#include "api/step/batch_rows.h"
#include "schedule/split_step.h"

namespace smp {

/// Tells what becomes of each part, and what is doubtful about it.
class DivisionWords {
 public:
  /// All must outlive this object. @param several  there are several microbatches
  DivisionWords(const ArgumentParts& parts, const BatchRows& rows, bool several)
      : parts_(parts), rows_(rows), several_(several) {}

  /// Tells of all parts, whose cuts are decided.
  void tell();
  /// Tells of an argument of a type that cannot be taken apart. @param meant  non_split names it
  void tell_unknown(const std::string& name, const std::type_info& type, bool meant);
  /// Returns a container that cannot be taken apart in words.
  std::string text_of(const std::type_info& type, std::size_t entries) const;

  const std::vector<schedule::SplitArgument>& told() const noexcept { return told_; }
  /// Returns warnings about what is passed whole because nobody knows better.
  const std::vector<std::string>& doubtful() const noexcept { return doubtful_; }

 private:
  bool is_worth_telling(const ArgumentPart& part) const;
  bool is_column_by_looks(const ArgumentPart& part) const;
  std::string how(const ArgumentPart& part) const;
  std::string hint(const ArgumentPart& part) const;

  const ArgumentParts& parts_;
  const BatchRows& rows_;
  const bool several_;
  std::vector<schedule::SplitArgument> told_;
  std::vector<std::string> doubtful_;
};

}  // namespace smp
