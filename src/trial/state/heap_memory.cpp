// trial/state/heap_memory.cpp: layouts of glibc 2.2 and later and of libstdc++'s version 6.
#include "trial/state/heap_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <string>

namespace smp::partitioning::heap {
namespace {

std::uintptr_t word_at(std::uintptr_t address) {
  std::uintptr_t word = 0;
  return copy(address, &word, kWord) ? word : 0;
}

bool may_be_block(std::uintptr_t address) {
  constexpr std::uintptr_t kLowest = 1 << 16;
  constexpr std::uintptr_t kEnd = std::uintptr_t{1} << 47;  // of a process's addresses
  return address >= kLowest && address < kEnd && address % alignof(std::max_align_t) == 0;
}

/// True if a std::vector may begin at `words`: pointers to the begin, the end and the end of the
/// capacity of a heap block that is not much larger.
bool is_vector(const Words& words) {
  constexpr std::size_t kMostSlack = 32;
  if (words[0] >= words[1] || words[1] > words[2]) return false;
  const auto block = block_size(words[0]);
  const auto memory = words[2] - words[0];
  return block >= memory && block - memory < kMostSlack;
}

/// True if a std::string may begin at `words`, with its text in a heap block: a pointer to the
/// characters, their number, the capacity; a zero byte ends the text.
bool is_string(const Words& words) {
  constexpr std::size_t kMostSlack = 32, kInside = 15;
  if (words[1] == 0 || words[1] > words[2] || words[2] <= kInside) return false;
  const auto block = block_size(words[0]);
  if (block <= words[2] || block - words[2] > kMostSlack) return false;
  std::string text(words[1] + 1, '\0');
  return copy(words[0], text.data(), text.size()) && text.find('\0') == words[1];
}

// ---- nodes -------------------------------------------------------------------------------------

Range value_of(std::uintptr_t node, std::size_t pointers) {
  return {node + pointers * kWord, node + block_size(node)};
}

/// True if the header of a red-black tree (std::map, std::set) may begin at `words`: colour, root,
/// leftmost, rightmost, count. The root's parent is the container itself.
bool is_tree(const Words& words) {
  return words[4] > 0 && block_size(words[1]) > 4 * kWord &&
         word_at(words[1] + kWord) == words.address();
}

void tree_elements(const Words& words, std::size_t most, std::vector<Range>& elements) {
  constexpr std::size_t kLeft = 2 * kWord, kRight = 3 * kWord, kPointers = 4;
  std::vector<std::uintptr_t> nodes{words[1]};
  while (!nodes.empty() && elements.size() < most) {
    const auto node = nodes.back();
    nodes.pop_back();
    if (block_size(node) <= kPointers * kWord) continue;
    elements.push_back(value_of(node, kPointers));
    nodes.push_back(word_at(node + kRight));
    nodes.push_back(word_at(node + kLeft));
  }
}

/// True if a std::list may begin at `words`: next, previous, count. The previous of its first node
/// is the container itself, and so is the next of its last.
bool is_list(const Words& words) {
  return words[2] > 0 && block_size(words[0]) > 2 * kWord && block_size(words[1]) > 2 * kWord &&
         word_at(words[0] + kWord) == words.address() && word_at(words[1]) == words.address();
}

/// Appends the values of a chain of nodes that begins with `node`; each node starts with so many
/// `pointers`.
void chain_elements(std::uintptr_t node, std::size_t pointers, std::size_t most,
                    std::vector<Range>& elements) {
  while (elements.size() < most && block_size(node) > pointers * kWord) {
    elements.push_back(value_of(node, pointers));
    node = word_at(node);
  }
}

/// True if a hash table (std::unordered_map, std::unordered_set) may begin at `words`: buckets,
/// number of buckets, first element, count. One bucket points to where the first element is held.
bool is_hash_table(const Words& words) {
  constexpr std::size_t kMostBuckets = 1 << 16, kFirst = 2, kOnlyBucket = 6;
  const auto buckets = words[0], count = words[1];
  if (count == 0 || count > kMostBuckets || words[3] == 0) return false;
  if (block_size(words[kFirst]) <= kWord) return false;
  const bool only = buckets == words.address() + kOnlyBucket * kWord;
  if (!only && block_size(buckets) < count * kWord) return false;
  std::vector<std::uintptr_t> all(count);
  if (!copy(buckets, all.data(), count * kWord)) return false;
  for (const auto bucket : all) {
    if (bucket == words.address() + kFirst * kWord) return true;
  }
  return false;
}

/// True if a std::deque may begin at `words`: the map of its pieces, their number, then two
/// iterators: the element, begin and end of its piece, and the piece's entry in the map.
bool is_deque(const Words& words) {
  const auto map = words[0];
  if (words[1] == 0 || block_size(map) < words[1] * kWord) return false;
  const auto holds = [&](std::size_t place) {
    const auto cur = words[place], first = words[place + 1], last = words[place + 2];
    const auto entry = words[place + 3];
    return entry >= map && entry < map + words[1] * kWord && first <= cur && cur < last &&
           word_at(entry) == first;
  };
  return holds(2) && holds(6) && (words[2] != words[6]);
}

void deque_elements(const Words& words, std::size_t most, std::vector<Range>& elements) {
  const auto piece = words[4] - words[3];
  for (auto entry = words[5]; entry <= words[9] && elements.size() < most; entry += kWord) {
    const auto first = word_at(entry);
    elements.push_back(
        {entry == words[5] ? words[2] : first, entry == words[9] ? words[6] : first + piece});
  }
}

}  // namespace

bool copy(std::uintptr_t from, void* to, std::size_t size) {
  const iovec target{to, size};
  const iovec source{reinterpret_cast<void*>(from), size};
  return ::process_vm_readv(::getpid(), &target, 1, &source, 1, 0) == static_cast<ssize_t>(size);
}

std::size_t block_size(std::uintptr_t address) {
  if (!may_be_block(address)) return 0;
  constexpr std::uintptr_t kInUse = 1, kMapped = 2, kFlags = 7;
  constexpr std::uintptr_t kSmallest = 32, kLargest = std::uintptr_t{1} << 32;
  const auto note = word_at(address - kWord);
  const auto size = note & ~kFlags;
  if (size < kSmallest || size > kLargest || size % alignof(std::max_align_t) != 0) return 0;
  if ((note & kMapped) != 0) return size - 2 * kWord;
  const bool used = (word_at(address - kWord + size) & kInUse) != 0;
  return used ? size - kWord : 0;
}

std::size_t container_elements(const Words& words, std::size_t most, std::vector<Range>& elements) {
#ifdef __GLIBCXX__
  if (is_vector(words)) {
    elements.push_back({words[0], words[1]});
    return 3 * kWord;
  }
  if (is_string(words)) {
    elements.push_back({words[0], words[0] + words[1]});
    return 4 * kWord;
  }
  if (is_tree(words)) {
    tree_elements(words, most, elements);
    return 5 * kWord;
  }
  if (is_hash_table(words)) {
    chain_elements(words[2], 1, most, elements);
    return 4 * kWord;
  }
  if (is_list(words)) {
    chain_elements(words[0], 2, most, elements);
    return 3 * kWord;
  }
  if (is_deque(words)) {
    deque_elements(words, most, elements);
    return 10 * kWord;
  }
#else
  static_cast<void>(words), static_cast<void>(most), static_cast<void>(elements);
#endif
  return 0;
}

bool is_shared_pointer(const Words& words) {
  constexpr std::size_t kCounts = 16;
  constexpr std::uint32_t kMostUsers = 1 << 20;
  const auto object = words[0], counts = words[1];
  if (object == 0 || block_size(counts) == 0) return false;
  if (object != counts + kCounts && word_at(counts + kCounts) != object) return false;
  const auto users = word_at(counts + kWord);
  const auto strong = static_cast<std::uint32_t>(users);
  const auto weak = static_cast<std::uint32_t>(users >> 32);
  return strong > 0 && strong < kMostUsers && weak > 0 && weak < kMostUsers;
}

}  // namespace smp::partitioning::heap
