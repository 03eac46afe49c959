// trial/state/owned_memory.cpp: a walk over what members own, breadth first.
#include "trial/state/owned_memory.h"

#include <malloc.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <unordered_set>

#include "smp/detail/routed.h"
#include "trial/state/heap_memory.h"

namespace smp::partitioning {
namespace {

constexpr std::size_t kCounts = 16;             // a shared object's, in front of it
constexpr std::size_t kMostAreaBytes = 4096;    // of one object
constexpr std::size_t kMostBytes = 64 << 10;    // of one module
constexpr std::size_t kMostElements = 1 << 12;  // of one container

std::uintptr_t counts_of(const torch::nn::Module& module) {
  std::uintptr_t words[2];  // the object, its counts
  const auto weak = module.weak_from_this();
  static_assert(sizeof weak == sizeof words);
  std::memcpy(words, static_cast<const void*>(&weak), sizeof words);
  return words[1];
}

std::uintptr_t begin_of(torch::nn::Module& module) {
  return reinterpret_cast<std::uintptr_t>(dynamic_cast<const void*>(&module));
}

}  // namespace

OwnPart whole_module(torch::nn::Module& module) {
#ifdef __GLIBCXX__
  const auto counts = counts_of(module);
  const auto begin = begin_of(module);
  if (counts != begin - kCounts) return {};
  const auto size = ::malloc_usable_size(reinterpret_cast<void*>(counts)) - kCounts;
  const auto offset = reinterpret_cast<std::uintptr_t>(&module) - begin;
  return {reinterpret_cast<const char*>(begin), size, offset, smp::detail::module_data_size()};
#else
  static_cast<void>(module);
  return {};
#endif
}

void OwnedMemory::leave_out(torch::nn::Module& module) {
  const auto begin = begin_of(module);
  const auto counts = counts_of(module);
  const auto block = counts == begin - kCounts ? counts : begin;
  modules_[block] = block + std::max(heap::Snapshot().block_size(block), sizeof(torch::nn::Module));
}

bool OwnedMemory::is_left_out(std::uintptr_t address) const {
  const auto after = modules_.upper_bound(address);
  return after != modules_.begin() && address < std::prev(after)->second;
}

class OwnedMemory::Walk {
 public:
  explicit Walk(const OwnedMemory& owned) : owned_(owned) {}

  std::vector<char> run(const OwnPart& own) {
    bytes_.assign(own.object, own.object + own.size);
    std::memset(bytes_.data() + own.base, 0, own.base_size);
    // The rest of torch::nn::Module's last word may be anything.
    const auto after = (own.base + own.base_size + heap::kWord - 1) / heap::kWord * heap::kWord;
    const auto object = reinterpret_cast<std::uintptr_t>(own.object);
    areas_.push_back({object, 0, own.base});
    if (after < own.size) areas_.push_back({object + after, after, own.size - after});
    for (std::size_t i = 0; i < areas_.size(); ++i) {
      const auto area = areas_[i];
      for (std::size_t at = 0; at + heap::kWord <= area.size;) at += follow(area, at);
    }
    return std::move(bytes_);
  }

 private:
  struct Area {
    std::uintptr_t address;
    std::size_t offset;  // in the picture
    std::size_t size;
  };

  /// If a container or std::shared_ptr begins at offset `at` of `area`, appends what it owns.
  /// @return the bytes of the container or pointer itself; one word if neither begins there
  std::size_t follow(const Area& area, std::size_t at) {
    heap::Words words(bytes_.data() + area.offset + at, area.size - at, area.address + at);
    std::vector<heap::Range> elements;
    if (const auto size = heap::container_elements(memory_, words, kMostElements, elements)) {
      for (const auto& range : elements) append(range);
      return size;
    }
    if (heap::is_shared_pointer(memory_, words)) {
      append_shared(words[0], words[1]);
      return 2 * heap::kWord;
    }
    return heap::kWord;
  }

  /// Appends the object of a std::shared_ptr, without the reference counts: these change whenever
  /// the pointer is copied, which says nothing about the object.
  void append_shared(std::uintptr_t object, std::uintptr_t counts) {
    if (owned_.is_left_out(object) || owned_.is_left_out(counts)) return;
    const bool together = object == counts + kCounts;
    const auto size = memory_.block_size(together ? counts : object);
    append({object, object + size - (together && size > 0 ? kCounts : 0)});
  }

  void append(const heap::Range& range) {
    const auto size = std::min<std::size_t>(range.end - range.begin, kMostAreaBytes);
    const auto offset = bytes_.size();
    const auto padded = (size + heap::kWord - 1) / heap::kWord * heap::kWord;
    if (size == 0 || offset + padded > kMostBytes || !seen_.insert(range.begin).second) return;
    bytes_.resize(offset + padded);
    if (memory_.copy(range.begin, bytes_.data() + offset, size)) {
      areas_.push_back({range.begin, offset, size});
    } else {
      bytes_.resize(offset);
    }
  }

  const OwnedMemory& owned_;
  heap::Snapshot memory_;
  std::vector<char> bytes_;
  std::vector<Area> areas_;
  std::unordered_set<std::uintptr_t> seen_;
};

std::vector<char> OwnedMemory::picture(const OwnPart& own) const {
  return own.size <= own.base_size ? std::vector<char>() : Walk(*this).run(own);
}

}  // namespace smp::partitioning
