// api/replicas/replicas_testing.h: zoo models in replicas, against one process on the global batch.
#pragma once

#include "zoo/differential.h"

namespace smp::zoo {

/// The part of a case that this rank trains: its stage, on the batches of its replica.
inline Trace train_replica(const Case& c, unsigned seed = 17) {
  return train_distributed(c, random_placement(c, pp_size(), seed), torch::kDouble, {},
                           {dp_size(), dp_rank()});
}

/// One process on the global batch: LibTorch, or for models that draw random numbers this library,
/// which draws for microbatch k of the job, wherever that runs.
inline Trace reference_of(const Case& c, int replicas) {
  if (!c.random) return train_in_one_process(c, torch::kDouble, kMicrobatches, replicas);
  auto whole = c;
  whole.batch = [c, replicas](int step) {
    std::vector<std::vector<Tensor>> columns;
    for (int r = 0; r < replicas; ++r) {
      const auto batch = c.batch(ReplicaOf{replicas, r}.batch(step));
      columns.resize(batch.size());
      for (std::size_t i = 0; i < batch.size(); ++i) columns[i].push_back(batch[i]);
    }
    std::vector<Tensor> joined;
    for (const auto& column : columns) joined.push_back(torch::cat(column));
    return joined;
  };
  auto config = zoo_config("simple");
  config.microbatches = kMicrobatches * replicas;
  Trace trace;
  run_local(1, [&] { trace = train_distributed(whole, {}); }, config, {1});
  return trace;
}

/// Losses of replicas become those of the global batch; every rank of the group calls it.
inline void join_losses(const Case& c, Trace& trace) {
  for (std::size_t s = 0; s < trace.losses.size(); ++s) {
    double sum = 0, rows = 0;
    for (const int member : group(Group::kDp)) {
      const auto own_rows =
          batch_of(c, ReplicaOf{dp_size(), dp_rank()}.batch(static_cast<int>(s)), torch::kDouble)[0]
              .size(0);
      const auto [loss, count] =
          broadcast(std::pair(trace.losses[s], own_rows), member, Group::kDp);
      sum += loss * static_cast<double>(count);
      rows += static_cast<double>(count);
    }
    trace.losses[s] = sum / rows;
  }
}

/// Of all stages of this rank's replica; every rank of it gets them.
inline std::set<std::string> names_in_replica(const Trace& own) {
  const auto names = names_of(own);
  std::set<std::string> all;
  for (const int member : group(Group::kPp)) {
    const auto part =
        broadcast(std::vector<std::string>(names.begin(), names.end()), member, Group::kPp);
    all.insert(part.begin(), part.end());
  }
  return all;
}

/// Running statistics are those of the replica's own samples.
inline void drop_statistics(Trace& trace) {
  std::erase_if(trace.finals, [](const auto& item) {
    return item.first.find("running_") != std::string::npos ||
           item.first.find("num_batches_tracked") != std::string::npos;
  });
}

}  // namespace smp::zoo
