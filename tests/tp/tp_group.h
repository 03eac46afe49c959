// tp/tp_group.h: ranks of one process that form a TP_GROUP, each on a fiber, outside of any
// session.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "d2d/wire/simulated_job.h"
#include "server/backward/executor.h"
#include "tp/group/tensor_parallel.h"

namespace smp::tp {

/// Places of one microbatch, numbered in the order in which its fiber asks.
class NumberedPlaces final : public module::CallPlaces {
 public:
  NumberedPlaces(std::uint64_t step, int microbatch) : step_(step), microbatch_(microbatch) {}
  std::optional<module::CallPlace> next() override {
    const auto key = (static_cast<std::uint64_t>(microbatch_) << 32) + next_++;
    return module::CallPlace{step_, key, "net.layer", microbatch_, true};
  }

 private:
  const std::uint64_t step_;
  const int microbatch_;
  std::uint64_t next_ = 0;
};

/// What the ranks of a group are given.
enum class Batches { kOwn, kPrescaled };

/// Runs `main(rank)` on the fiber of every rank of a group of `size`.
inline void on_group(d2d::SimulatedJob& job, int size, const std::function<void(int)>& main,
                     Batches batches = Batches::kOwn) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  job.on_ranks(ranks, [&](int rank, d2d::Communicators& own) {
    NumberedPlaces places(1, 0);
    TensorParallel group(own.all(), places, Layout::kMemory, batches == Batches::kPrescaled);
    const base::FiberLocalScope scope(TensorParallel::local(), &group);
    main(rank);
  });
}

/// Backward from `output` on the calling fiber, into `.grad`.
inline void backward(const at::Tensor& output, const at::Tensor& gradient) {
  const torch::autograd::Edge root(output.grad_fn(), output.output_nr());
  server::run_backward({root}, {gradient});
}

}  // namespace smp::tp
