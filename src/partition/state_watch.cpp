// partition/state_watch.cpp: pictures of members, and who writes which storage.
#include "partition/state_watch.h"

#include <malloc.h>
#include <sys/uio.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>

#include "base/check.h"
#include "module/running_statistics.h"

namespace smp::partitioning {
namespace {

/// Of one vector that is a member.
constexpr std::size_t kMostElementBytes = 4096;

/// Copies memory that may not be there.
bool copy_memory(std::uintptr_t from, void* to, std::size_t size) {
  const iovec target{to, size};
  const iovec source{reinterpret_cast<void*>(from), size};
  return ::process_vm_readv(::getpid(), &target, 1, &source, 1, 0) == static_cast<ssize_t>(size);
}

/// Three words as std::vector has them: begin, end, end of the memory, which fills the block that
/// glibc gave for it. So pointers to three objects are not taken for one.
bool looks_like_vector(const std::uintptr_t (&words)[3]) {
  constexpr std::uintptr_t kLowest = 1 << 16;
  constexpr std::size_t kMostSlack = 32;
  if (words[0] < kLowest || words[0] % alignof(std::max_align_t) != 0) return false;
  if (words[0] >= words[1] || words[1] > words[2]) return false;
  std::size_t block = 0;
  if (!copy_memory(words[0] - sizeof block, &block, sizeof block)) return false;
  block &= ~std::size_t{7};
  const std::size_t memory = words[2] - words[0];
  return block >= memory && block - memory < kMostSlack;
}

/// Appends the elements of a vector.
void append_elements(std::vector<char>& bytes, const std::uintptr_t (&words)[3]) {
  const auto size = std::min<std::size_t>(words[1] - words[0], kMostElementBytes);
  const auto old = bytes.size();
  bytes.resize(old + size);
  if (!copy_memory(words[0], bytes.data() + old, size)) bytes.resize(old);
}

/// The whole object of a module that is not routed, whose type we do not know: what one allocation
/// of std::make_shared holds behind the reference counts. Nothing if it was made otherwise.
OwnPart part_of_plain(torch::nn::Module& module) {
#ifdef __GLIBCXX__
  constexpr std::size_t kCounts = 16;
  const auto weak = module.weak_from_this();
  std::uintptr_t words[2];  // the object and its counts
  static_assert(sizeof weak == sizeof words);
  std::memcpy(words, static_cast<const void*>(&weak), sizeof words);
  const auto* object = static_cast<const char*>(dynamic_cast<const void*>(&module));
  if (words[1] != reinterpret_cast<std::uintptr_t>(object) - kCounts) return {};
  const auto size = ::malloc_usable_size(reinterpret_cast<void*>(words[1])) - kCounts;
  const auto offset = static_cast<std::size_t>(reinterpret_cast<const char*>(&module) - object);
  return {object, size, offset, sizeof(torch::nn::Module)};
#else
  static_cast<void>(module);
  return {};
#endif
}

int routed_above(const TracedModel& model, int node) {
  while (node > 0 && (*model.routed)[static_cast<std::size_t>(node)] == nullptr) {
    node = model.tree->nodes[static_cast<std::size_t>(node)].parent;
  }
  return node;
}

bool is_said(const TracedModel& model, int node) {
  const auto* routed = (*model.routed)[static_cast<std::size_t>(node)];
  return routed != nullptr && routed->smp_state_use() != StateUse::kWatched;
}

}  // namespace

StateWatch::StateWatch(const std::vector<TracedModel>& models) {
  for (int m = 0; m < static_cast<int>(models.size()); ++m) {
    const auto& model = models[static_cast<std::size_t>(m)];
    auto& all = watched_.emplace_back(model.modules->size());
    auto& parts = parts_.emplace_back(model.modules->size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto* routed = (*model.routed)[i];
      const bool said = routed != nullptr && routed->smp_state_use() != StateUse::kWatched;
      auto& module = *(*model.modules)[i];
      const bool normalises = module::is_normalisation(module);
      if (said) continue;
      if (routed != nullptr && !normalises) all[i].own = routed->smp_own_part();
      const int node = static_cast<int>(i);
      if (routed == nullptr && !normalises && !is_said(model, routed_above(model, node))) {
        all[i].own = part_of_plain(module);
        all[i].plain = true;
        parts[static_cast<std::size_t>(routed_above(model, node))].push_back(node);
      }
      for (const auto& tensors :
           {module.named_buffers(/*recurse=*/false), module.named_parameters(/*recurse=*/false)}) {
        for (const auto& item : tensors) {
          const auto& tensor = item.value();
          if (!tensor.defined() || !tensor.has_storage()) continue;
          held_.emplace(tensor.storage().unsafeGetStorageImpl(),
                        Held{m, node, routed_above(model, node), item.key(), normalises});
        }
      }
    }
  }
}

/// The part without torch::nn::Module's, then the elements of its vectors.
std::vector<char> StateWatch::bytes_of_part(const OwnPart& own) {
  if (own.size <= own.base_size) return {};
  std::vector<char> bytes(own.object, own.object + own.size);
  std::memset(bytes.data() + own.base, 0, own.base_size);
  for (std::size_t at = 0; at + 3 * sizeof(std::uintptr_t) <= own.size;
       at += sizeof(std::uintptr_t)) {
    std::uintptr_t words[3];
    std::memcpy(words, bytes.data() + at, sizeof words);
    if (looks_like_vector(words)) append_elements(bytes, words);
  }
  return bytes;
}

void StateWatch::begin_run(int run) {
  run_ = run;
  for (auto& model : watched_) {
    for (auto& watched : model) {
      watched.bytes = bytes_of_part(watched.own);
      watched.depth = 0;
    }
  }
}

void StateWatch::end_run() {
  for (auto& model : watched_) {
    for (auto& watched : model) compare(watched, watched.plain);
  }
}

/// @param own_call  it is the module's own call that wrote
void StateWatch::compare(Watched& watched, bool own_call) {
  if (watched.own.size <= watched.own.base_size) return;
  auto now = bytes_of_part(watched.own);
  if (now == watched.bytes) return;
  const bool counts = !own_call || run_ > 0;
  if (counts && !std::exchange(watched.changes, true)) {
    std::size_t first = 0;
    while (first < watched.own.size && now[first] == watched.bytes[first]) ++first;
    watched.what =
        first < watched.own.size
            ? base::concat(watched.plain ? "members of a part that is not routed, from byte "
                                         : "its members, from byte ",
                           first, " of ", watched.own.size)
            : std::string("elements of a vector that is a member");
  }
  watched.bytes = std::move(now);
}

void StateWatch::enter(int model, int module) {
  auto& watched = watched_[static_cast<std::size_t>(model)][static_cast<std::size_t>(module)];
  compare(watched, watched.depth++ > 0);
  compare_parts(model, module);
}

void StateWatch::leave(int model, int module) {
  auto& watched = watched_[static_cast<std::size_t>(model)][static_cast<std::size_t>(module)];
  compare(watched, true);
  --watched.depth;
  compare_parts(model, module);
}

/// Modules that are not routed belong to the call of the routed one above them.
void StateWatch::compare_parts(int model, int module) {
  const auto m = static_cast<std::size_t>(model);
  for (const int part : parts_[m][static_cast<std::size_t>(module)]) {
    compare(watched_[m][static_cast<std::size_t>(part)], true);
  }
}

void StateWatch::look(const std::vector<std::pair<int, int>>& running) {
  for (const auto& [model, module] : running) {
    compare(watched_[static_cast<std::size_t>(model)][static_cast<std::size_t>(module)], true);
    compare_parts(model, module);
  }
}

void StateWatch::note_use(int model, int module, const at::Tensor& tensor, bool writes) {
  if (!tensor.has_storage()) return;
  const auto [first, last] = held_.equal_range(tensor.storage().unsafeGetStorageImpl());
  for (auto at = first; at != last; ++at) {
    auto& held = at->second;
    const bool own = model == held.model && module == held.routed;
    if (writes) held.written |= run_ > 0 || !own;
    held.by_others |= !own;
  }
}

void StateWatch::keep_address(const at::Tensor& tensor) {
  if (tensor.defined()) addresses_.emplace_back(tensor.getIntrusivePtr());
}

std::vector<simulate::StateChange> StateWatch::changes(int model) const {
  std::map<int, simulate::StateChange> found;
  const auto m = static_cast<std::size_t>(model);
  for (std::size_t i = 0; i < watched_[m].size(); ++i) {
    const auto& watched = watched_[m][i];
    for (const int part : parts_[m][i]) {
      const auto& plain = watched_[m][static_cast<std::size_t>(part)];
      if (!plain.changes) continue;
      found[static_cast<int>(i)] = {static_cast<int>(i), true, plain.what};
    }
    if (watched.changes && !watched.plain) {
      found[static_cast<int>(i)] = {static_cast<int>(i), true, watched.what};
    }
  }
  for (const auto& [storage, held] : held_) {
    if (held.model != model || !held.written || (held.normalises && !held.by_others)) continue;
    auto& change =
        found.try_emplace(held.routed, simulate::StateChange{held.routed, false, {}}).first->second;
    change.shared |= held.by_others;
    if (change.what.empty()) change.what = base::concat("'", held.name, "'");
  }
  std::vector<simulate::StateChange> changes;
  for (auto& [module, change] : found) changes.push_back(std::move(change));
  return changes;
}

}  // namespace smp::partitioning
