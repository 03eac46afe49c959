// trial/state/heap_memory.h: what memory of unknown type holds: blocks of glibc's heap, containers
// of libstdc++. All questions are safe to ask of any word; what is told apart is told by marks that
// no other memory has by chance.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <unordered_map>
#include <vector>

namespace smp::partitioning::heap {

inline constexpr std::size_t kWord = sizeof(std::uintptr_t);

struct Range {
  std::uintptr_t begin;
  std::uintptr_t end;
};

/// A copy of some words of memory, and the address that they were copied from. Words beyond the
/// end of the copy read as 0.
class Words {
 public:
  Words(const char* copy, std::size_t size, std::uintptr_t address)
      : copy_(copy), size_(size), address_(address) {}
  std::uintptr_t operator[](std::size_t i) const {
    std::uintptr_t word = 0;
    if ((i + 1) * kWord <= size_) std::memcpy(&word, copy_ + i * kWord, kWord);
    return word;
  }
  std::uintptr_t address() const { return address_; }

 private:
  const char* copy_;
  std::size_t size_;
  std::uintptr_t address_;
};

/// The memory of this process, of which not everything is mapped, while nobody writes what is asked
/// for. The kernel copies each page once, however many words of it are read. Threads: one.
class Snapshot {
 public:
  Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  /// Copies `size` bytes. @return false if not all of them are mapped
  bool copy(std::uintptr_t from, void* to, std::size_t size);
  /// Returns the word that begins at `address`, aligned or not; 0 if it is not mapped.
  std::uintptr_t word_at(std::uintptr_t address);
  /// Returns the bytes of the heap block that begins at `address`, by glibc's notes before it and
  /// behind it; 0 if none begins there.
  std::size_t block_size(std::uintptr_t address);

 private:
  static constexpr std::size_t kPageBytes = 4096;  // pages are no smaller anywhere
  static constexpr std::size_t kFirstBytes = 64 * kPageBytes;
  struct Page {
    bool is_mapped = false;
    std::array<char, kPageBytes> bytes;
  };
  /// nullptr if it is not mapped.
  const Page* page(std::uintptr_t begin);

  /// Apart from the heap, which looking at it must not change: a word that once was a pointer may
  /// point to what is allocated next.
  std::pmr::monotonic_buffer_resource memory_;
  std::pmr::unordered_map<std::uintptr_t, Page> pages_{&memory_};
};

/// If a vector, string, map, set, hash table, list or deque with elements begins at `words`,
/// returns the bytes of the container object itself and appends the ranges of its elements (in
/// nodes: what follows the pointers), at most `most`. Otherwise returns 0.
std::size_t container_elements(Snapshot& memory, const Words& words, std::size_t most,
                               std::vector<Range>& elements);

/// True if a std::shared_ptr begins at `words`: a pointer to the object, and one to reference
/// counts that belong to it.
bool is_shared_pointer(Snapshot& memory, const Words& words);

}  // namespace smp::partitioning::heap
