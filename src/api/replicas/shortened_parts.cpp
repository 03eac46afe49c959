// api/replicas/shortened_parts.cpp: see the header.
#include "api/replicas/shortened_parts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "server/values/tensor_memory.h"

namespace smp {

const ShortenedParts::Table* ShortenedParts::find(const at::Tensor& slice) const {
  const auto found = std::find_if(tables_.begin(), tables_.end(), [&](const Table& table) {
    return server::memory_of(table.slice) == server::memory_of(slice);
  });
  return found == tables_.end() ? nullptr : &*found;
}

ShortenedParts::Table& ShortenedParts::table_of(const at::Tensor& slice) {
  const auto* const known = find(slice);
  return known == nullptr ? tables_.emplace_back(Table{slice, {}})
                          : tables_[static_cast<std::size_t>(known - tables_.data())];
}

at::Tensor ShortenedParts::before(const at::Tensor& slice, const at::Tensor& rows) const {
  auto parts = slice.detach().index_select(0, rows);
  const auto* const table = find(slice);
  if (table == nullptr) return parts;
  const auto numbers = rows.cpu();
  for (std::int64_t i = 0; i < numbers.numel(); ++i) {
    const auto found = table->parts.find(numbers.const_data_ptr<std::int64_t>()[i]);
    if (found != table->parts.end()) parts[i].copy_(found->second);
  }
  return parts;
}

at::Tensor ShortenedParts::scale(at::Tensor& slice, const at::Tensor& rows,
                                 const at::Tensor& scales) {
  auto& known = table_of(slice).parts;
  const auto numbers = rows.cpu();
  std::vector<std::int64_t> left;  // positions
  for (std::int64_t i = 0; i < numbers.numel(); ++i) {
    if (!known.contains(numbers.const_data_ptr<std::int64_t>()[i])) left.push_back(i);
  }
  const auto positions = at::tensor(left, at::kLong);
  const auto there = positions.to(rows.device());
  const auto written = rows.index_select(0, there);
  const auto parts = slice.detach().index_select(0, written);
  slice.index_copy_(0, written, parts * scales.index_select(0, there).unsqueeze(1));
  auto names = numbers.index_select(0, positions);
  for (std::int64_t i = 0; i < names.numel(); ++i) {
    known.emplace(names.const_data_ptr<std::int64_t>()[i], parts[i]);
  }
  return names;
}

void ShortenedParts::take_back() {
  for (auto& [slice, parts] : std::exchange(tables_, {})) {
    for (const auto& [row, part] : parts) slice.detach()[row].copy_(part);
  }
}

}  // namespace smp
