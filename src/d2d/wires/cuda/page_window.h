// d2d/wires/cuda/page_window.h: which pages of a window of memory are free. Threads: one.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace smp::d2d {

/// Lends runs of neighbouring pages, which come back in any order.
class PageWindow {
 public:
  explicit PageWindow(std::uint32_t pages) : taken_(pages) {}

  /// Returns the first of `count` free neighbours: those behind the ones taken last, if there are
  /// any. Nothing if there are none.
  [[nodiscard]] std::optional<std::uint32_t> take(std::uint32_t count);
  /// Gives back the pages that take() gave.
  void give_back(std::uint32_t first, std::uint32_t count);
  std::uint32_t pages() const noexcept { return static_cast<std::uint32_t>(taken_.size()); }
  std::uint32_t free_pages() const noexcept { return pages() - lent_; }

 private:
  std::optional<std::uint32_t> find(std::uint32_t from, std::uint32_t to,
                                    std::uint32_t count) const;

  std::vector<bool> taken_;
  std::uint32_t next_ = 0;  // where the search begins
  std::uint32_t lent_ = 0;
};

}  // namespace smp::d2d
