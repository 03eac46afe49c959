// fuzz/row_lists.cpp: an entry that comes to another row changes the loss.
#include "fuzz/row_lists.h"

namespace smp::fuzz {
namespace {

template <class T>
std::vector<T> part_of(const std::vector<T>& list, std::int64_t start, std::int64_t length) {
  return {list.begin() + start, list.begin() + start + length};
}

}  // namespace

RowLists row_lists(const Program& program, int step) {
  RowLists lists;
  if (!program.body.row_lists) return lists;
  for (int row = 0; row < program.rows; ++row) {
    const int number = row + 7 * (step + 2);
    lists.weights.push_back(0.5 + 0.1 * (number % 11));
    // The first is longer than the batch, so that no list of them looks like whole batches.
    const int length = row == 0 ? program.rows + 1 : 1 + number % 3;
    lists.notes.push_back(at::linspace(-1, 1, length * kWidth, at::kDouble).view({length, kWidth}) /
                          (1 + row));
    lists.labels["a"].push_back(std::string(static_cast<std::size_t>(number % 4), 'x'));
  }
  // Where there are as many as rows, they would be split as well.
  if (program.rows != 3) lists.labels["b"] = {"", "x", "xx"};
  lists.classes.assign(static_cast<std::size_t>(program.rows) + 1, 0.25);
  return lists;
}

RowLists part_of(const RowLists& lists, std::int64_t start, std::int64_t length) {
  if (lists.weights.empty()) return lists;
  auto part = lists;
  part.weights = part_of<double>(lists.weights, start, length);
  part.notes = part_of<at::Tensor>(lists.notes, start, length);
  part.labels["a"] = part_of<std::string>(lists.labels.at("a"), start, length);
  return part;
}

at::Tensor with_lists(const at::Tensor& x, const RowLists& lists) {
  if (lists.weights.empty()) return x;
  const auto& labels = lists.labels.at("a");
  std::vector<at::Tensor> changed;
  for (std::size_t row = 0; row < lists.weights.size(); ++row) {
    changed.push_back(x[static_cast<std::int64_t>(row)] * lists.weights.at(row) +
                      lists.notes.at(row).mean(0) +
                      0.1 * static_cast<double>(labels.at(row).size()));
  }
  auto sum = at::stack(changed);
  for (const double value : lists.classes) sum = sum + 0.01 * value;
  for (const auto& [name, list] : lists.labels) {
    if (name == "b") sum = sum + 0.01 * static_cast<double>(list.size());
  }
  return sum;
}

}  // namespace smp::fuzz
