// api/step/argument_parts.h: the tensors and containers of a step's arguments, with what the
// options say of them. Threads: any; reads no values of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "smp/step.h"

namespace smp {

/// A tensor or container of an argument. Within a list it stands for the same member of every
/// entry, because all of them are treated alike.
struct ArgumentPart {
  std::size_t argument = 0;
  detail::PartKind kind = detail::PartKind::kTensor;
  std::string path;      ///< "1.mask"
  std::string numbered;  ///< "1.0"
  int inside = -1;       ///< number of the container that it is a part of, or -1
  bool in_list = false;  ///< one of its containers is a list
  std::vector<const detail::OutlinePart*> places = {};  ///< one, or one an entry of a list
  std::vector<int> members = {};                        ///< numbers of its parts

  bool whole = false;          ///< StepOptions::non_split names it
  bool by_entries = false;     ///< StepOptions::split_entries names it, and it is a list
  std::optional<int> axis;     ///< of a tensor that StepOptions::split_axes names
  bool holds_tensors = false;  ///< it is one, or has some, that non_split does not name
  bool holds_own = false;      ///< its codec slices it, or has such parts, likewise

  detail::Cut cut = detail::Cut::kWhole;  ///< what becomes of it

  bool is_tensor() const noexcept { return kind == detail::PartKind::kTensor; }
  bool is_list() const noexcept { return kind == detail::PartKind::kList; }
  /// True if its codec says what a microbatch gets.
  bool is_own() const noexcept { return kind == detail::PartKind::kOwn; }
  /// Number of entries of the container, in the first of its places.
  std::size_t entries() const { return places.front()->entries; }
  /// True if there are so many entries in each of its places.
  bool has_entries(std::int64_t count) const;
  /// True if there is no tensor in it, not even one that is passed whole.
  bool has_no_tensors() const;
  /// Returns the part as it stands in StepOptions: `1` or `"1.mask"`.
  std::string as_option() const;
};

/// All parts, each before those that are parts of it.
class ArgumentParts {
 public:
  /// Both must outlive this object.
  ArgumentParts(const std::vector<detail::StepArgument>& arguments, const StepOptions& options);

  int size() const noexcept { return static_cast<int>(parts_.size()); }
  ArgumentPart& operator[](int number) { return parts_[static_cast<std::size_t>(number)]; }
  const ArgumentPart& operator[](int number) const {
    return parts_[static_cast<std::size_t>(number)];
  }
  auto begin() const { return parts_.begin(); }
  auto end() const { return parts_.end(); }

  const at::Tensor& tensor(const ArgumentPart& part, const detail::OutlinePart& place) const {
    return arguments_[part.argument].packet.tensors[place.begin.tensors];
  }
  /// Returns the axis along which a tensor of the part is split, not negative.
  /// @throws UsageError  it has no such axis
  int axis_of(const ArgumentPart& part, const at::Tensor& tensor) const;
  /// Returns the size of one of the part's tensors along its axis; nothing if it has none.
  std::optional<std::int64_t> rows_of(const ArgumentPart& part,
                                      const detail::OutlinePart& place) const;
  /// True if tensors in the entries of a list differ in dtype or number of axes: then they are
  /// no rows of one batch.
  bool holds_several_kinds(const ArgumentPart& list) const;
  /// True if the entries of a list hardly are the rows of a batch: it is one entry, or they are of
  /// several kinds, their tensors have one shape, so that rows would be in one tensor, or at least
  /// twice as many rows as there are entries.
  bool look_like_columns(const ArgumentPart& list) const;
  /// True if something in the part is split.
  bool is_cut_below(const ArgumentPart& part) const;
  /// Returns the part in words: "Double [8, 3]", "a list of 8 entries, the first tensor ...".
  std::string text_of(const ArgumentPart& part) const;

  /// Returns a warning for each name in the options that names nothing.
  std::vector<std::string> unknown_names() const;

 private:
  void find();
  void add(std::size_t argument, const detail::OutlinePart& place, int inside);
  void apply_options(ArgumentPart& part) const;
  bool is_known(const ArgumentName& name) const;

  const std::vector<detail::StepArgument>& arguments_;
  const StepOptions& options_;
  std::vector<ArgumentPart> parts_;
};

}  // namespace smp
