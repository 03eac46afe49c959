// server/modules/buffer_copies.cpp: reports, and who may keep a copy.
#include "server/modules/buffer_copies.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "d2d/tensors/value_hash.h"
#include "server/values/tensor_memory.h"

namespace smp::server {
namespace {

/// Returns a hash of the values; never 0.
std::uint64_t hash_of(const at::Tensor& tensor) {
  if (!can_be_guarded(tensor)) return 1 + std::uint64_t{version_of(tensor)};
  return std::max<std::uint64_t>(d2d::value_hash(tensor), 1);
}

}  // namespace

void BufferCopies::add(const std::string& path, const at::Tensor& tensor, GlobalRank owner,
                       bool here, bool weight) {
  if (!here) {
    foreign_.shrink(path, tensor, owner, Held::kBuffer);
    entries_.push_back({path, owner, {}});
    return;
  }
  if (guard_of(tensor) != nullptr) {  // of another model too, which has it under another number
    entries_.push_back({path, owner, {}});
    return;
  }
  entries_.push_back({path, owner, tensor});
  auto& entry = entries_.back();
  entry.read = can_be_guarded(tensor) && (tensor.is_cpu() || (weight && owner == rank_));
  entry.at_begin = entry.last = look_at(entry);
  entry.first = entry.last.values;
  if (owner != rank_ && can_be_guarded(tensor)) watch(entry);
}

/// Guards a copy so that its next use is noted. It may be guarded still, if a shallow copy of it
/// was used.
void BufferCopies::watch(Entry& entry) const {
  if (guard_of(entry.tensor) != nullptr) return entry.guard->forget_use();
  entry.guard = c10::make_intrusive<Guard>(entry.tensor.variable_data());
  guard_with_memory(entry.tensor, entry.guard);
}

BufferCopies::Look BufferCopies::look_at(const Entry& entry) {
  const auto& tensor = entry.tensor;
  Look look{version_of(tensor),
            tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr, 0};
  const bool guarded = entry.guard && guard_of(tensor) != nullptr;
  if (entry.read) look.values = hash_of(guarded ? entry.guard->plain() : tensor);
  return look;
}

/// Returns true if the buffer was written, or got other memory, since it was last looked at; looks
/// at it again.
bool BufferCopies::has_changed(Entry& entry) {
  const auto before = std::exchange(entry.last, look_at(entry));
  if (before == entry.last) return false;
  entry.changed = true;
  entry.hash = 0;
  return true;
}

/// Returns a hash of the buffer's values. Values are read only when the hash is asked for, and once
/// per change.
std::uint64_t BufferCopies::hash_now(Entry& entry) {
  if (entry.hash != 0) return entry.hash;
  entry.hash = entry.last.values != 0 ? entry.last.values
                                      : hash_of(entry.guard ? entry.guard->plain() : entry.tensor);
  if (!entry.changed) entry.first = entry.hash;
  return entry.hash;
}

/// Returns true if nobody else holds the tensor, so its model is gone; releases it then.
bool BufferCopies::is_gone(Entry& entry) const {
  if (!entry.tensor.defined()) return true;
  if (entry.tensor.use_count() > 1) return false;
  entry.tensor.reset();
  entry.guard.reset();
  return true;
}

void BufferCopies::give(c10::function_ref<void()> give_values) {
  std::vector<Entry*> unused;
  for (auto& entry : entries_) {
    if (entry.guard && !entry.guard->used()) unused.push_back(&entry);
  }
  give_values();
  for (auto& entry : entries_) {
    if (entry.owner == rank_ && entry.tensor.defined()) entry.first = look_at(entry).values;
  }
  for (auto* entry : unused) {
    if (!entry->guard->used()) continue;
    entry->last = look_at(*entry);
    entry->hash = 0;
    watch(*entry);
  }
}

/// A copy that nobody used since is as it was.
void BufferCopies::begin_step() {
  for (auto& entry : entries_) {
    const bool unused = entry.guard && !entry.guard->used();
    if (entry.tensor.defined()) entry.at_begin = unused ? entry.last : look_at(entry);
    entry.reported = false;
  }
}

std::string BufferCopies::report() {
  std::string report;
  for (std::uint32_t number = 0; number < entries_.size(); ++number) {
    auto& entry = entries_[number];
    if (is_gone(entry)) continue;
    const bool copy = entry.owner != rank_;
    if (copy && entry.guard && !entry.guard->used()) continue;
    const bool unheard = std::exchange(entry.unheard, false);
    const bool changed = has_changed(entry) || unheard;
    if (copy && entry.guard) watch(entry);
    if (!copy && !changed) continue;
    const bool committed = std::exchange(entry.committed, false);
    const bool in_step = committed || entry.last != entry.at_begin;
    if (!copy && in_step && entry.told) continue;
    const auto hash = hash_now(entry);
    const auto event = copy ? (in_step ? Event::kCopyChanged : Event::kCopyUsed)
                            : (in_step ? Event::kChangedInStep : Event::kChanged);
    const Line line{number, event, hash, copy ? entry.first : 0};
    report.append(reinterpret_cast<const char*>(&line), sizeof line);
    entry.reported = !copy;
  }
  return report;
}

std::vector<BufferCopies::Line> BufferCopies::lines_of(std::string_view report) {
  SMP_ASSERT(report.size() % sizeof(Line) == 0, report.size());
  std::vector<Line> lines(report.size() / sizeof(Line));
  if (!lines.empty()) std::memcpy(lines.data(), report.data(), report.size());
  return lines;
}

void BufferCopies::note_commit() noexcept {
  for (auto& entry : entries_) {
    if (entry.tensor.defined()) entry.committed = version_of(entry.tensor) != entry.last.version;
  }
}

bool BufferCopies::is_news(GlobalRank from, std::string_view report) {
  bool news = false;
  for (const auto& line : lines_of(report)) {
    const auto [known, fresh] = told_.try_emplace({from, line.number}, line);
    news |= fresh || std::exchange(known->second, line) != line;
  }
  return news;
}

void BufferCopies::note(GlobalRank from, std::string_view report) {
  for (const auto& line : lines_of(report)) {
    SMP_ASSERT(line.number < entries_.size(), "buffer ", line.number, " of ", entries_.size());
    if (line.event == Event::kCopyUsed || line.event == Event::kCopyChanged) {
      noted_.push_back({from, line});
    } else {
      changed_[line.number] = {line.hash, line.event == Event::kChangedInStep, false};
    }
  }
}

std::string BufferCopies::judge() {
  for (const auto& [reader, line] : std::exchange(noted_, {})) {
    const auto found = changed_.find(line.number);
    const auto original = found == changed_.end() ? line.first : found->second.hash;
    const auto& entry = entries_[line.number];
    const bool changed_twice = line.event == Event::kCopyChanged && found != changed_.end() &&
                               found->second.in_step && !found->second.told;
    SMP_REQUIRE(
        !changed_twice, "rank ", reader, ": buffer ", entry.path, " lives on rank ", entry.owner,
        ", and both ranks changed it in one step: in one process there is one buffer, which "
        "changes twice. Place the module that holds it and what uses it on one rank "
        "(set_partition)");
    SMP_REQUIRE(line.hash == original, "rank ", reader, ": buffer ", entry.path, " lives on rank ",
                entry.owner, ", was used on rank ", reader,
                " too, and has other values there now, because one of them changed it: rank ",
                reader,
                " computed with stale values. Place the module that holds it and what "
                "uses it on one rank (set_partition), or let the module that holds it return it");
  }
  std::string changes;
  for (auto& [number, change] : changed_) {
    if (std::exchange(change.told, true)) continue;
    const Line line{number, Event::kChanged, change.hash, 0};
    changes.append(reinterpret_cast<const char*>(&line), sizeof line);
  }
  return changes;
}

/// Other ranks may not have received what report() and judge() returned, so it is reported again.
void BufferCopies::drop() noexcept {
  noted_.clear();
  told_.clear();
  for (auto& [number, change] : changed_) change.told = false;
  for (auto& entry : entries_) entry.unheard |= std::exchange(entry.reported, false);
}

void BufferCopies::follow(std::string_view changes) {
  for (const auto& line : lines_of(changes)) {
    auto& entry = entries_.at(line.number);
    // Copies stay where a write has left the values as they were, and later changes are told.
    const bool as_it_was = entry.first != 0 && entry.first == line.hash;
    if (entry.owner == rank_) entry.told |= !as_it_was;
    if (entry.owner == rank_ || !entry.tensor.defined() || !entry.guard) continue;
    if (guard_of(entry.tensor) == nullptr) continue;  // in use: the next report says so
    if (hash_now(entry) == line.hash) continue;
    entry.guard.reset();
    foreign_.shrink(entry.path, std::exchange(entry.tensor, {}), entry.owner, Held::kBuffer,
                    " (which changed it)");
  }
}

}  // namespace smp::server
