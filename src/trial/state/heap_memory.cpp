// trial/state/heap_memory.cpp: layouts of glibc 2.2 and later and of libstdc++'s version 6.
#include "trial/state/heap_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <span>
#include <string>

#include "base/memory/cross_memory.h"

namespace smp::partitioning::heap {
namespace {

bool may_be_block(std::uintptr_t address) {
  constexpr std::uintptr_t kLowest = 1 << 16;
  constexpr std::uintptr_t kEnd = std::uintptr_t{1} << 47;  // of a process's addresses
  return address >= kLowest && address < kEnd && address % alignof(std::max_align_t) == 0;
}

/// True if a std::vector may begin at `words`: pointers to the begin, the end and the end of the
/// capacity of a heap block that is not much larger.
bool is_vector(Snapshot& memory, const Words& words) {
  constexpr std::size_t kMostSlack = 32;
  if (words[0] >= words[1] || words[1] > words[2]) return false;
  const auto block = memory.block_size(words[0]);
  const auto capacity = words[2] - words[0];
  return block >= capacity && block - capacity < kMostSlack;
}

/// True if a std::string may begin at `words`, with its text in a heap block: a pointer to the
/// characters, their number, the capacity; a zero byte ends the text.
bool is_string(Snapshot& memory, const Words& words) {
  constexpr std::size_t kMostSlack = 32, kInside = 15;
  if (words[1] == 0 || words[1] > words[2] || words[2] <= kInside) return false;
  const auto block = memory.block_size(words[0]);
  if (block <= words[2] || block - words[2] > kMostSlack) return false;
  std::string text(words[1] + 1, '\0');
  return memory.copy(words[0], text.data(), text.size()) && text.find('\0') == words[1];
}

// ---- nodes -------------------------------------------------------------------------------------

Range value_of(Snapshot& memory, std::uintptr_t node, std::size_t pointers) {
  return {node + pointers * kWord, node + memory.block_size(node)};
}

/// True if the header of a red-black tree (std::map, std::set) may begin at `words`: colour, root,
/// leftmost, rightmost, count. The root's parent is the container itself.
bool is_tree(Snapshot& memory, const Words& words) {
  return words[4] > 0 && memory.block_size(words[1]) > 4 * kWord &&
         memory.word_at(words[1] + kWord) == words.address();
}

void tree_elements(Snapshot& memory, const Words& words, std::size_t most,
                   std::vector<Range>& elements) {
  constexpr std::size_t kLeft = 2 * kWord, kRight = 3 * kWord, kPointers = 4;
  std::vector<std::uintptr_t> nodes{words[1]};
  while (!nodes.empty() && elements.size() < most) {
    const auto node = nodes.back();
    nodes.pop_back();
    if (memory.block_size(node) <= kPointers * kWord) continue;
    elements.push_back(value_of(memory, node, kPointers));
    nodes.push_back(memory.word_at(node + kRight));
    nodes.push_back(memory.word_at(node + kLeft));
  }
}

/// True if a std::list may begin at `words`: next, previous, count. The previous of its first node
/// is the container itself, and so is the next of its last.
bool is_list(Snapshot& memory, const Words& words) {
  return words[2] > 0 && memory.block_size(words[0]) > 2 * kWord &&
         memory.block_size(words[1]) > 2 * kWord &&
         memory.word_at(words[0] + kWord) == words.address() &&
         memory.word_at(words[1]) == words.address();
}

/// Appends the values of a chain of nodes that begins with `node`; each node starts with so many
/// `pointers`.
void chain_elements(Snapshot& memory, std::uintptr_t node, std::size_t pointers, std::size_t most,
                    std::vector<Range>& elements) {
  while (elements.size() < most && memory.block_size(node) > pointers * kWord) {
    elements.push_back(value_of(memory, node, pointers));
    node = memory.word_at(node);
  }
}

/// True if a hash table (std::unordered_map, std::unordered_set) may begin at `words`: buckets,
/// number of buckets, first element, count. One bucket points to where the first element is held.
bool is_hash_table(Snapshot& memory, const Words& words) {
  constexpr std::size_t kMostBuckets = 1 << 16, kFirst = 2, kOnlyBucket = 6;
  const auto buckets = words[0], count = words[1];
  if (count == 0 || count > kMostBuckets || words[3] == 0) return false;
  if (memory.block_size(words[kFirst]) <= kWord) return false;
  const bool only = buckets == words.address() + kOnlyBucket * kWord;
  if (!only && memory.block_size(buckets) < count * kWord) return false;
  std::vector<std::uintptr_t> all(count);
  if (!memory.copy(buckets, all.data(), count * kWord)) return false;
  for (const auto bucket : all) {
    if (bucket == words.address() + kFirst * kWord) return true;
  }
  return false;
}

/// True if a std::deque may begin at `words`: the map of its pieces, their number, then two
/// iterators: the element, begin and end of its piece, and the piece's entry in the map.
bool is_deque(Snapshot& memory, const Words& words) {
  const auto map = words[0];
  if (words[1] == 0 || memory.block_size(map) < words[1] * kWord) return false;
  const auto holds = [&](std::size_t place) {
    const auto cur = words[place], first = words[place + 1], last = words[place + 2];
    const auto entry = words[place + 3];
    return entry >= map && entry < map + words[1] * kWord && first <= cur && cur < last &&
           memory.word_at(entry) == first;
  };
  return holds(2) && holds(6) && (words[2] != words[6]);
}

void deque_elements(Snapshot& memory, const Words& words, std::size_t most,
                    std::vector<Range>& elements) {
  const auto piece = words[4] - words[3];
  for (auto entry = words[5]; entry <= words[9] && elements.size() < most; entry += kWord) {
    const auto first = memory.word_at(entry);
    elements.push_back(
        {entry == words[5] ? words[2] : first, entry == words[9] ? words[6] : first + piece});
  }
}

}  // namespace

// ---- Snapshot ----------------------------------------------------------------------------------

namespace {

class MappedMemory final : public std::pmr::memory_resource {
  void* do_allocate(std::size_t bytes, std::size_t /*alignment: less than a page's*/) override {
    void* const memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    return memory;
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t /*alignment*/) override {
    ::munmap(memory, bytes);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }
};

std::pmr::memory_resource* mapped_memory() {
  static MappedMemory memory;
  return &memory;
}

}  // namespace

Snapshot::Snapshot() : memory_(kFirstBytes, mapped_memory()) {}

const Snapshot::Page* Snapshot::page(std::uintptr_t begin) {
  const auto [known, is_new] = pages_.try_emplace(begin);
  auto& page = known->second;
  if (is_new) {
    const auto bytes = std::as_writable_bytes(std::span(page.bytes));
    page.is_mapped = base::read_process_memory(::getpid(), begin, bytes);
  }
  return page.is_mapped ? &page : nullptr;
}

bool Snapshot::copy(std::uintptr_t from, void* to, std::size_t size) {
  auto* out = static_cast<char*>(to);
  while (size > 0) {
    const auto offset = from % kPageBytes;
    const auto* const whole = page(from - offset);
    if (whole == nullptr) return false;
    const auto here = std::min(size, kPageBytes - offset);
    std::memcpy(out, whole->bytes.data() + offset, here);
    out += here;
    from += here;
    size -= here;
  }
  return true;
}

std::uintptr_t Snapshot::word_at(std::uintptr_t address) {
  std::uintptr_t word = 0;
  return copy(address, &word, kWord) ? word : 0;
}

std::size_t Snapshot::block_size(std::uintptr_t address) {
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

std::size_t container_elements(Snapshot& memory, const Words& words, std::size_t most,
                               std::vector<Range>& elements) {
#ifdef __GLIBCXX__
  if (is_vector(memory, words)) {
    elements.push_back({words[0], words[1]});
    return 3 * kWord;
  }
  if (is_string(memory, words)) {
    elements.push_back({words[0], words[0] + words[1]});
    return 4 * kWord;
  }
  if (is_tree(memory, words)) {
    tree_elements(memory, words, most, elements);
    return 5 * kWord;
  }
  if (is_hash_table(memory, words)) {
    chain_elements(memory, words[2], 1, most, elements);
    return 4 * kWord;
  }
  if (is_list(memory, words)) {
    chain_elements(memory, words[0], 2, most, elements);
    return 3 * kWord;
  }
  if (is_deque(memory, words)) {
    deque_elements(memory, words, most, elements);
    return 10 * kWord;
  }
#else
  static_cast<void>(memory), static_cast<void>(words), static_cast<void>(most),
      static_cast<void>(elements);
#endif
  return 0;
}

bool is_shared_pointer(Snapshot& memory, const Words& words) {
  constexpr std::size_t kCounts = 16;
  // Counts apart from their object are with its address alone. A tensor, whose third word is its
  // storage's address, is larger.
  constexpr std::size_t kMostApart = 40;
  constexpr std::uint32_t kMostUsers = 1 << 20;
  const auto object = words[0], counts = words[1];
  const auto block = memory.block_size(counts);
  if (object == 0 || block == 0) return false;
  const bool is_apart = block <= kMostApart && memory.word_at(counts + kCounts) == object;
  if (object != counts + kCounts && !is_apart) return false;
  const auto users = memory.word_at(counts + kWord);
  const auto strong = static_cast<std::uint32_t>(users);
  const auto weak = static_cast<std::uint32_t>(users >> 32);
  return strong > 0 && strong < kMostUsers && weak > 0 && weak < kMostUsers;
}

}  // namespace smp::partitioning::heap
