// samples/ported/compare.h: what the ports of this folder share: the same training in one process,
// in plain LibTorch, to be compared with.
#pragma once

#include <smp/smp.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace ported {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

/// Doubles that are added in another order.
constexpr double kTolerance = 1e-10;

/// Returns the rows that one microbatch gets of a batch.
inline Tensors rows_of(const Tensors& batch, int microbatch, int microbatches) {
  const auto rows = smp::microbatch_rows(batch[0].size(0), microbatch, microbatches);
  Tensors slice;
  for (const auto& tensor : batch) slice.push_back(tensor.narrow(0, rows.start, rows.length));
  return slice;
}

/// Runs one step of one process on the batches of all replicas, microbatch by microbatch, and
/// returns its loss: the mean over the rows.
template <class Loss>
double step_alone(const std::vector<Tensors>& batches, int microbatches, const Loss& loss_of) {
  double rows = 0, sum = 0;
  for (const auto& batch : batches) rows += static_cast<double>(batch[0].size(0));
  for (const auto& batch : batches) {
    for (int m = 0; m < microbatches; ++m) {
      const auto slice = rows_of(batch, m, microbatches);
      const auto loss = loss_of(slice) * (static_cast<double>(slice[0].size(0)) / rows);
      loss.backward();
      sum += loss.template item<double>();
    }
  }
  return sum;
}

/// Returns the mean of what the replicas have, weighted by their rows.
inline double mean_of_replicas(double own, std::int64_t rows) {
  struct Share {
    double sum, rows;
  };
  Share all{0, 0};
  const auto weight = static_cast<double>(rows);
  for (const auto& share : smp::all_gather(Share{own * weight, weight}, smp::Group::kDp)) {
    all.sum += share.sum;
    all.rows += share.rows;
  }
  return all.sum / all.rows;
}

/// Compares the losses of both trainings on rank 0, and returns the program's exit status, on every
/// rank the same.
inline int verdict(const char* program, const std::vector<double>& together,
                   const std::vector<double>& alone) {
  double difference = together.size() == alone.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(together.size(), alone.size()); ++i) {
    difference = std::max(difference, std::abs(together[i] - alone[i]) / std::abs(alone[i]));
  }
  const bool equal = difference < kTolerance && together.back() < together.front();
  if (smp::rank() == 0) {
    std::printf("%s: loss %.4f at first, %.4f after %zu steps; one process differs by %.1e\n",
                program, together.front(), together.back(), together.size(), difference);
  }
  return smp::broadcast(equal, 0) ? 0 : 1;
}

}  // namespace ported
