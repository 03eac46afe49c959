// d2d/wires/cuda/page_window.cpp: see the header.
#include "d2d/wires/cuda/page_window.h"

#include <algorithm>

#include "base/check.h"

namespace smp::d2d {

std::optional<std::uint32_t> PageWindow::take(std::uint32_t count) {
  SMP_ASSERT(count > 0 && count <= pages(), count, " of ", pages(), " pages");
  if (count > free_pages()) return std::nullopt;
  auto first = find(next_, pages(), count);
  if (!first) first = find(0, std::min(pages(), next_ + count - 1), count);
  if (!first) return std::nullopt;
  std::fill_n(taken_.begin() + *first, count, true);
  lent_ += count;
  next_ = *first + count == pages() ? 0 : *first + count;
  return first;
}

std::optional<std::uint32_t> PageWindow::find(std::uint32_t from, std::uint32_t to,
                                              std::uint32_t count) const {
  std::uint32_t run = 0;
  for (auto page = from; page < to; ++page) {
    run = taken_[page] ? 0 : run + 1;
    if (run == count) return page + 1 - count;
  }
  return std::nullopt;
}

void PageWindow::give_back(std::uint32_t first, std::uint32_t count) {
  SMP_ASSERT(count <= lent_ && first <= pages() && count <= pages() - first, count, " pages at ",
             first);
  const auto begin = taken_.begin() + first;
  SMP_ASSERT(std::all_of(begin, begin + count, [](bool taken) { return taken; }), count,
             " pages at ", first, " come back, and some are free");
  std::fill_n(begin, count, false);
  lent_ -= count;
}

}  // namespace smp::d2d
