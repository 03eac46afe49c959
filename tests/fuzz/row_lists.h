// fuzz/row_lists.h: what a step gets beside its tensors: lists with an entry a row, and others.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fuzz/program.h"

namespace smp::fuzz {

/// An argument of a step. Empty if the program has none of it.
struct RowLists {
  std::vector<double> weights;                             ///< one a row
  std::vector<at::Tensor> notes;                           ///< one a row, each [any, kWidth]
  std::map<std::string, std::vector<std::string>> labels;  ///< "a": one a row; "b": three
  std::vector<double> classes;                             ///< one more than rows: no rows
};

/// The same on all ranks.
RowLists row_lists(const Program& program, int step);
/// The lists of `length` rows from `start` on.
RowLists part_of(const RowLists& lists, std::int64_t start, std::int64_t length);
/// x [rows, kWidth], changed in each row by what the lists say of it.
at::Tensor with_lists(const at::Tensor& x, const RowLists& lists);

}  // namespace smp::fuzz
