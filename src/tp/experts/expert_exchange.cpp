// tp/experts/expert_exchange.cpp: see the header.
#include "tp/experts/expert_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "smp/tp/primitives.h"
#include "tp/group/tensor_parallel.h"

namespace smp::tp {
namespace {

using Counts = std::vector<std::int64_t>;

/// Returns the counts of all ranks, one after another; while this rank is alone, as many of its
/// own.
Counts counts_of_all(const Counts& own) {
  const auto& group = TensorParallel::current();
  Counts all;
  if (group.alone() || group.size() == 1) {
    for (int rank = 0; rank < group.size(); ++rank) all.insert(all.end(), own.begin(), own.end());
    return all;
  }
  const auto gathered = fused_allgather_for_tp(at::tensor(own, at::kLong), 0);
  const auto* const first = gathered.const_data_ptr<std::int64_t>();
  all.assign(first, first + gathered.numel());
  return all;
}

std::int64_t sum_of(const Counts& counts, std::int64_t first, std::int64_t number) {
  const auto begin = counts.begin() + first;
  return std::accumulate(begin, begin + number, std::int64_t{0});
}

void append_range(Counts& places, std::int64_t first, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) places.push_back(first + i);
}

at::Tensor indices(const Counts& places, const at::Tensor& rows) {
  return at::tensor(places, at::kLong).to(rows.device());
}

}  // namespace

ExpertExchange::ExpertExchange(const Counts& counts, std::int64_t own) {
  const auto& group = TensorParallel::current();
  const auto ranks = static_cast<std::int64_t>(group.size());
  const auto experts = ranks * own, mine = group.rank() * own;
  const auto all = counts_of_all(counts);
  for (std::int64_t block = 0; block < ranks * ranks; ++block) {
    block_ = std::max(block_, sum_of(all, block * own, own));
  }
  for (std::int64_t to = 0; to < ranks; ++to) {
    append_range(sent_, to * block_, sum_of(counts, to * own, own));
  }
  for (std::int64_t expert = mine; expert < mine + own; ++expert) {
    std::int64_t count = 0;
    for (std::int64_t from = 0; from < ranks; ++from) {
      const auto first = from * experts;
      const auto rows = all[static_cast<std::size_t>(first + expert)];
      append_range(taken_, from * block_ + sum_of(all, first + mine, expert - mine), rows);
      count += rows;
    }
    counts_.push_back(count);
  }
}

at::Tensor ExpertExchange::moved(const at::Tensor& rows, const Counts& from,
                                 const Counts& to) const {
  const auto size = TensorParallel::current().size();
  const auto blocks = at::zeros({size * block_, rows.size(-1)}, rows.options())
                          .index_copy(0, indices(from, rows), rows);
  return scatter_and_merge_for_tp(blocks, 0, 0).index_select(0, indices(to, rows));
}

at::Tensor ExpertExchange::to_experts(const at::Tensor& rows) const {
  return moved(rows, sent_, taken_);
}

at::Tensor ExpertExchange::back(const at::Tensor& results) const {
  return moved(results, taken_, sent_);
}

}  // namespace smp::tp
