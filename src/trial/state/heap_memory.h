// trial/state/heap_memory.h: what memory of unknown type holds: blocks of glibc's heap, containers
// of libstdc++. All questions are safe to ask of any word; what is told apart is told by marks that
// no other memory has by chance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
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

/// Copies `size` bytes from memory that may not be mapped. @return false if it is not
bool copy(std::uintptr_t from, void* to, std::size_t size);

/// Returns the bytes of the heap block that begins at `address`, by glibc's notes before it and
/// behind it; 0 if none begins there.
std::size_t block_size(std::uintptr_t address);

/// If a vector, string, map, set, hash table, list or deque with elements begins at `words`,
/// returns the bytes of the container object itself and appends the ranges of its elements (in
/// nodes: what follows the pointers), at most `most`. Otherwise returns 0.
std::size_t container_elements(const Words& words, std::size_t most, std::vector<Range>& elements);

/// True if a std::shared_ptr begins at `words`: a pointer to the object, and one to reference
/// counts that belong to it.
bool is_shared_pointer(const Words& words);

}  // namespace smp::partitioning::heap
