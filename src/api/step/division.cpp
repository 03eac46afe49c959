// api/step/division.cpp: containers from outside to inside, then the tensors and bytes in them.
#include "api/step/division.h"

#include <c10/util/Type.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "api/step/argument_parts.h"
#include "api/step/batch_rows.h"
#include "api/step/division_words.h"
#include "base/check.h"

namespace smp {
namespace {

using base::concat;
using detail::Cut;
using detail::OutlinePart;

constexpr const char* kOptions = " (StepOptions in smp/step.h)";

/// Decides what becomes of each part.
class Cutter {
 public:
  Cutter(ArgumentParts& parts, const BatchRows& rows, bool several, detail::SeenCuts& seen)
      : parts_(parts), rows_(rows), several_(several), seen_(seen) {}

  void cut() {
    for (int p = 0; p < parts_.size(); ++p) {
      if (parts_[p].inside < 0) cut(parts_[p]);
    }
  }

  /// Requires that a container which cannot be split is not one of rows.
  void require_whole(const std::string& path, const std::string& what, std::size_t entries) {
    if (rows_.count() <= 1 || entries == 0) return;
    if (static_cast<std::int64_t>(entries) != rows_.count()) {
      seen_.try_emplace(path, Cut::kWhole);
      return;
    }
    SMP_REQUIRE(!several_ || seen_.contains(path), "argument ", path, " of the step is ", what,
                ", as many as the batch has rows, and cannot be split: every microbatch would get "
                "the whole. If an entry belongs to a row, pass a std::vector, or give its type a "
                "codec with slice() (smp/codec.h); if not, name it in StepOptions::non_split");
  }

 private:
  void cut(ArgumentPart& part) {
    if (part.whole) return;
    if (part.is_own()) {
      part.cut = Cut::kOwn;
      return;
    }
    if (part.is_tensor()) {
      if (rows_.count() > 0) part.cut = Cut::kAxis;
      return;
    }
    if (part.is_list()) part.cut = cut_of_list(part);
    if (part.cut == Cut::kEntries) return;
    for (const int member : part.members) cut(parts_[member]);
    const bool plain = !part.is_list() && part.has_no_tensors() && !part.in_list;
    if (plain && !parts_.is_cut_below(part)) {
      require_whole(part.path, parts_.text_of(part), part.entries());
    }
  }

  Cut cut_of_list(const ArgumentPart& list) {
    if (rows_.count() < 0) return Cut::kWhole;
    if (list.by_entries) {
      SMP_REQUIRE(list.has_entries(rows_.count()), who(list),
                  "; StepOptions::split_entries says that its entries are the rows");
      return remember(list, Cut::kEntries);
    }
    if (list.holds_own) return cut_of_own(list);
    return list.holds_tensors ? cut_of_tensors(list) : cut_of_values(list);
  }

  /// Each entry has all rows: what is sliced by its codec, and the tensors beside.
  Cut cut_of_own(const ArgumentPart& list) {
    SMP_REQUIRE(!list.holds_tensors || rows_.fit_members(list), who(list),
                ": it has values that their codecs slice, and tensors that do not have the rows. "
                "If its entries are the rows, say split_entries = {",
                list.as_option(), "}", kOptions);
    return Cut::kWhole;
  }

  Cut cut_of_tensors(const ArgumentPart& list) {
    const bool by_axis = rows_.fit_members(list);
    const bool by_entries = list.has_entries(rows_.count()) && !an_axis_is_named(list);
    SMP_REQUIRE(by_axis || by_entries, who(list),
                ": neither its entries are the rows, nor has each tensor as many. Give them one "
                "batch size, or name the argument that has none in StepOptions::non_split");
    const auto cut = by_axis ? Cut::kAxis : Cut::kEntries;
    if (rows_.count() == 1 || an_axis_is_named(list)) return cut;
    const auto known = seen_of_tensors(list);
    if (by_axis && by_entries) {
      if (known != seen_.end()) return known->second;
      SMP_REQUIRE(!several_ || parts_.holds_several_kinds(list), who(list),
                  ": its entries may be the rows, or each tensor may have them", which(list));
      return Cut::kAxis;
    }
    SMP_REQUIRE(!several_ || known == seen_.end() || known->second == cut, who(list), ": now ",
                by_axis ? "each tensor has as many" : "its entries are as many",
                ", in earlier calls ",
                by_axis ? "its entries were the rows" : "each tensor had them", which(list));
    return remember(list, cut);
  }

  Cut cut_of_values(const ArgumentPart& list) {
    if (!list.has_no_tensors()) return Cut::kWhole;  // non_split names them
    const auto known = seen_.find(list.path);
    if (known != seen_.end() && known->second == Cut::kAxis) return Cut::kWhole;  // undefined now
    const bool was_whole = known != seen_.end() && known->second == Cut::kWhole;
    if (list.has_entries(rows_.count())) {
      return was_whole ? Cut::kWhole : remember(list, Cut::kEntries);
    }
    if (list.has_entries(0)) return Cut::kWhole;
    SMP_REQUIRE(!several_ || was_whole || known == seen_.end(), who(list),
                "; in earlier calls it had an entry a row and was split. If it has none, name it "
                "in StepOptions::non_split");
    return remember(list, Cut::kWhole);
  }

  /// What became of a list with tensors earlier. That it was whole, with undefined ones, says
  /// nothing of these.
  detail::SeenCuts::const_iterator seen_of_tensors(const ArgumentPart& list) const {
    const auto known = seen_.find(list.path);
    const bool tells = known != seen_.end() && known->second != Cut::kWhole;
    return tells ? known : seen_.end();
  }

  /// Keeps what became of a list for later calls, if it mattered. Of one row nobody knows what it
  /// is.
  Cut remember(const ArgumentPart& list, Cut cut) {
    if (several_ && rows_.count() > 1) {
      const auto [known, is_new] = seen_.try_emplace(list.path, cut);
      if (!is_new && known->second == Cut::kWhole) known->second = cut;
    }
    return cut;
  }

  bool an_axis_is_named(const ArgumentPart& part) const {
    return part.axis || std::any_of(part.members.begin(), part.members.end(),
                                    [&](int member) { return an_axis_is_named(parts_[member]); });
  }

  std::string who(const ArgumentPart& list) const {
    return concat("argument ", list.path, " of the step is ", parts_.text_of(list),
                  ", and the batch has ", rows_.count(), rows_.count() == 1 ? " row (" : " rows (",
                  rows_.origin(), ")");
  }
  static std::string which(const ArgumentPart& list) {
    return concat(". Say split_entries = {", list.as_option(), "}, or split_axes = {{",
                  list.as_option(), ", 0}}, or name it in non_split", kOptions);
  }

  ArgumentParts& parts_;
  const BatchRows& rows_;
  const bool several_;  // microbatches
  detail::SeenCuts& seen_;
};

/// Notes the rows of the tensors in the entries of a list.
void note_rows(const OutlinePart& list, std::vector<TensorCut>& cuts) {
  for (std::size_t row = 0; row < list.entries; ++row) {
    const bool is_last = row + 1 == list.entries;
    const auto end = is_last ? list.end : list.entry_begins[row + 1];
    for (auto t = list.entry_begins[row].tensors; t < end.tensors; ++t) {
      cuts[t] = {Cut::kEntries, 0, static_cast<std::int64_t>(row)};
    }
  }
}

}  // namespace

Division::Division(const std::vector<detail::StepArgument>& arguments, const StepOptions& options,
                   bool several, detail::SeenCuts& seen)
    : arguments_(arguments) {
  ArgumentParts parts(arguments, options);
  const BatchRows rows(parts, seen, several);
  rows_ = rows.count();
  Cutter cutter(parts, rows, several, seen);
  cutter.cut();
  DivisionWords words(parts, rows, several);
  doubtful_ = parts.unknown_names();
  for (std::size_t a = 0; a < arguments.size(); ++a) {
    const auto& [packet, outline, type, problem, entries] = arguments[a];
    cuts_.emplace_back(packet.tensors.size());
    divided_.emplace_back();
    own_.emplace_back();
    if (type == nullptr || !outline.parts().empty()) continue;
    const auto name = std::to_string(a);
    const bool meant = options.non_split.contains(ArgumentName(name));
    if (entries && !meant) cutter.require_whole(name, words.text_of(*type, *entries), *entries);
    if (packet.bytes.empty() && packet.tensors.empty()) words.tell_unknown(name, *type, meant);
  }
  for (const auto& part : parts) {
    for (const auto* place : part.places) {
      if (part.cut == Cut::kAxis && part.is_tensor()) {
        const int axis = parts.axis_of(part, parts.tensor(part, *place));
        cuts_[part.argument][place->begin.tensors] = {Cut::kAxis, axis};
      } else if (part.cut == Cut::kEntries) {
        divided_[part.argument].push_back(place);
        note_rows(*place, cuts_[part.argument]);
      } else if (part.cut == Cut::kOwn) {
        divided_[part.argument].push_back(place);
        own_[part.argument].push_back({place, part.path});
        for (auto t = place->begin.tensors; t < place->end.tensors; ++t) {
          cuts_[part.argument][t] = {Cut::kOwn};
        }
      }
    }
  }
  const auto lies_before = [](const OutlinePart* one, const OutlinePart* other) {
    return std::pair(one->begin.bytes, one->begin.tensors) <
           std::pair(other->begin.bytes, other->begin.tensors);
  };
  for (auto& places : divided_) std::sort(places.begin(), places.end(), lies_before);
  for (auto& places : own_) {
    std::sort(places.begin(), places.end(), [&](const auto& one, const auto& other) {
      return lies_before(one.place, other.place);
    });
  }
  words.tell();
  told_ = words.told();
  for (const auto& text : words.doubtful()) doubtful_.push_back(text);
}

std::string Division::bytes(std::size_t argument, MicrobatchRows rows,
                            const std::vector<std::string_view>& own) const {
  const auto& all = arguments_[argument].packet.bytes;
  std::string bytes;
  std::size_t done = 0, own_done = 0;
  for (const auto* list : divided_[argument]) {
    bytes.append(all, done, list->begin.bytes - done);
    if (list->kind == detail::PartKind::kOwn) {
      if (!own.empty()) bytes.append(own.at(own_done++));
      done = list->end.bytes;
      continue;
    }
    const auto length = static_cast<std::uint64_t>(rows.length);
    bytes.append(reinterpret_cast<const char*>(&length), sizeof length);  // as Writer::count()
    const auto begin_of = [&](std::int64_t row) {
      const auto entry = static_cast<std::size_t>(row);
      return entry < list->entries ? list->entry_begins[entry].bytes : list->end.bytes;
    };
    const auto begin = begin_of(rows.start);
    bytes.append(all, begin, begin_of(rows.start + rows.length) - begin);
    done = list->end.bytes;
  }
  return bytes.append(all, done);
}

}  // namespace smp
