// trial/state/hidden_members.cpp: exchanges words of members whenever other code begins to run.
#include "trial/state/hidden_members.h"

#include <algorithm>
#include <cstring>

namespace smp::partitioning {
namespace {

constexpr std::size_t kWord = sizeof(void*);

/// Bytes of `own` from `at` on, up to a word, that are the user's: [first, last).
std::pair<std::size_t, std::size_t> users_part(const OwnPart& own, std::size_t at) {
  std::size_t first = at;
  std::size_t last = std::min(at + kWord, own.size);
  const std::size_t base_end = own.base + own.base_size;
  if (first >= own.base && first < base_end) first = std::min(base_end, last);
  if (last > own.base && last <= base_end) last = std::max(own.base, first);
  return {first, last};
}

/// A pointer or a size is exchanged as a whole, or not at all.
std::vector<std::size_t> changed_words(const KeptMembers& members) {
  std::vector<std::size_t> words;
  for (std::size_t at = 0; at < members.own.size; at += kWord) {
    const auto [first, last] = users_part(members.own, at);
    const auto* now = members.own.object + first;
    if (std::memcmp(now, members.before.data() + first, last - first) != 0) words.push_back(at);
  }
  return words;
}

}  // namespace

HiddenMembers::HiddenMembers(std::vector<KeptMembers> members, std::set<ModelModule> readers)
    : readers_(std::move(readers)), running_(1) {
  for (const auto& reader : readers_) {
    if (reader.second == 0) running_[0].push_back(reader);
  }
  for (auto& kept : members) {
    auto words = changed_words(kept);
    hidden_.push_back({std::move(kept), std::move(words)});
  }
  show();
}

HiddenMembers::~HiddenMembers() {
  for (auto& hidden : hidden_) show(hidden, true);
}

void HiddenMembers::enter(ModelModule module, bool crosses) {
  if (crosses) running_.emplace_back();
  running_.back().push_back(module);
  show();
}

/// Code of a call that cannot cross stays part of its caller's code after the call, since both run
/// on the same rank: members that the call was shown stay visible to the caller.
void HiddenMembers::leave(bool crosses) {
  if (crosses) running_.pop_back();
  show();
}

void HiddenMembers::show() {
  const Code& code = running_.back();
  const bool is_tested = std::any_of(code.begin(), code.end(),
                                     [&](const auto& module) { return readers_.count(module); });
  for (auto& hidden : hidden_) {
    const bool is_own = std::find(code.begin(), code.end(), hidden.members.owner) != code.end();
    show(hidden, is_own || !is_tested);
  }
}

void HiddenMembers::show(Hidden& hidden, bool wanted) {
  if (wanted == std::exchange(hidden.shown, wanted)) return;
  // OwnPart is made for looking, but the object itself is the user's and not const.
  auto* object = const_cast<char*>(hidden.members.own.object);  // NOLINT(*-const-cast)
  for (const std::size_t at : hidden.words) {
    const auto [first, last] = users_part(hidden.members.own, at);
    std::swap_ranges(object + first, object + last, hidden.members.before.data() + first);
  }
}

}  // namespace smp::partitioning
