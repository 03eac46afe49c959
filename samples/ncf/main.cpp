// samples/ncf/main.cpp: trains NeuMF on ratings, each rank on samples of its own, and ranks
// held-out items.
//
//     mpirun -n 4 ncf --tp 4 --epochs 10
#include <smp/smp.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <vector>

#include "ncf.h"
#include "options.h"
#include "ranking.h"
#include "ratings.h"

namespace ncf {
namespace {

/// Float32 sums that are associated otherwise, over a few steps of Adam.
constexpr double kTolerance = 1e-4;
constexpr std::int64_t kUsersPerRanking = 32;

/// Over different batches: with a prescaled batch several ranks have the same.
double sum_over_batches(double own) {
  double sum = 0;
  for (const double one : smp::all_gather(own, smp::Group::kDp)) sum += one;
  return sum * smp::data_shard().count / smp::dp_size();
}

Ratings ratings_of(Options& options) {
  if (options.ratings.empty()) {
    return Ratings::generate(options.config.users, options.config.items, options.per_user,
                             options.seed);
  }
  auto ratings = Ratings::read(options.ratings);
  options.config.users = ratings.users();
  options.config.items = ratings.items();
  return ratings;
}

template <class Net>
Tensor loss_of(Net& net, const Samples& batch) {
  return torch::binary_cross_entropy_with_logits(net(batch.user, batch.item), batch.label);
}

torch::optim::Adam adam(const std::vector<Tensor>& parameters, const Options& options) {
  return torch::optim::Adam(parameters, torch::optim::AdamOptions(options.learning_rate));
}

/// Losses of the first steps in plain LibTorch, on the batches of all ranks.
std::vector<double> losses_of_one_process(const Options& options, const Ratings& ratings) {
  torch::manual_seed(options.seed);
  Ncf net(options.config, /*spread=*/false);
  auto optimizer = adam(net->parameters(), options);
  std::vector<smp::DistributedSampler> samplers;
  const int batches = smp::data_shard().count;
  for (int batch = 0; batch < batches; ++batch) {
    samplers.push_back(smp::DistributedSampler(
        ratings.size(), {.seed = options.seed, .replicas = batches, .replica = batch}));
  }
  const double weight = 1.0 / (batches * options.microbatches);
  std::vector<double> losses;
  for (std::int64_t step = 0; step < options.check; ++step) {
    optimizer.zero_grad();
    losses.push_back(0);
    for (auto& sampler : samplers) {
      const auto batch = ratings.samples(sampler.next(options.rows).value(), 0);
      for (int m = 0; m < options.microbatches; ++m) {
        const auto part = [&](const Tensor& all) {
          return all.tensor_split(options.microbatches)[static_cast<std::size_t>(m)];
        };
        const auto loss =
            loss_of(net, {part(batch.user), part(batch.item), part(batch.label)}) * weight;
        loss.backward();
        losses.back() += loss.item<double>();
      }
    }
    optimizer.step();
  }
  return losses;
}

class Trainer {
 public:
  Trainer(const Options& options, const Ratings& ratings)
      : options_(options),
        ratings_(ratings),
        net_(seeded(options)),
        model_(net_),
        optimizer_(model_, adam(net_->parameters(), options)),
        sampler_(ratings.size(), {.seed = options.seed, .drop_last = true}) {}

  /// @return the losses of its steps, of all batches
  std::vector<double> train(int epoch) {
    auto step = smp::step([&](const Tensor& user, const Tensor& item, const Tensor& label) {
      const auto loss = loss_of(model_, {user, item, label});
      model_.backward(loss);
      return loss;
    });
    model_.train();
    sampler_.set_epoch(static_cast<std::size_t>(epoch));
    std::vector<double> losses;
    const auto rows = static_cast<std::size_t>(options_.rows);
    while (const auto numbers = sampler_.next(rows)) {
      const bool whole = numbers->size() == rows;  // ranks that share tables have equal batches
      if (!whole || (options_.steps > 0 && std::ssize(losses) == options_.steps)) break;
      const auto batch = ratings_.samples(*numbers, static_cast<std::uint64_t>(epoch));
      optimizer_.zero_grad();
      const auto loss = step(batch.user, batch.item, batch.label).reduce_mean();
      optimizer_.step();
      losses.push_back(sum_over_batches(loss.item<double>()) / smp::data_shard().count);
    }
    if (losses.empty()) throw std::runtime_error("no whole batch for each rank; pass fewer --rows");
    return losses;
  }

  /// Of all users, each in one batch.
  Ranking rank() {
    const torch::NoGradGuard no_grad;
    model_.eval();
    auto scores =
        smp::step([&](const Tensor& user, const Tensor& item) { return model_(user, item); });
    Ranking sum;
    const auto shard = smp::data_shard();
    const auto stride = kUsersPerRanking * shard.count;
    for (std::int64_t first = 0; first < ratings_.users(); first += stride) {
      add(sum, first + kUsersPerRanking * shard.index, scores);
    }
    return {sum_over_batches(sum.users), sum_over_batches(sum.hits), sum_over_batches(sum.gain)};
  }

 private:
  static Ncf seeded(const Options& options) {
    torch::manual_seed(options.seed);
    return Ncf(options.config);
  }

  /// As many users in every batch; those past the end do not count.
  template <class Scores>
  void add(Ranking& sum, std::int64_t first, Scores& scores) {
    std::vector<std::int64_t> users;
    std::vector<double> counts;
    for (auto user = first; user < first + kUsersPerRanking; ++user) {
      counts.push_back(user < ratings_.users());
      users.push_back(std::min(user, ratings_.users() - 1));
    }
    const auto items = ratings_.candidates(users);
    const auto who = torch::tensor(users, torch::kLong).unsqueeze(1).expand_as(items);
    const auto logits = scores(who.reshape(-1), items.reshape(-1)).concat();
    const auto part = rank_first(logits.view_as(items), torch::tensor(counts));
    sum = {sum.users + part.users, sum.hits + part.hits, sum.gain + part.gain};
  }

  const Options& options_;
  const Ratings& ratings_;
  Ncf net_;
  smp::DistributedModel<Ncf> model_;
  smp::DistributedOptimizer<torch::optim::Adam> optimizer_;
  smp::DistributedSampler sampler_;
};

void compare(const std::vector<double>& together, const std::vector<double>& alone) {
  if (together.size() < alone.size()) throw std::runtime_error("fewer steps than --check");
  double difference = 0;
  for (std::size_t i = 0; i < alone.size(); ++i) {
    difference = std::max(difference, std::abs(together[i] - alone[i]) / std::abs(alone[i]));
  }
  if (smp::rank() == 0) {
    std::printf("losses of %zu steps equal those of one process on the global batch, to %.1e\n",
                alone.size(), difference);
  }
  if (!(difference < kTolerance)) throw std::runtime_error("the two trainings came apart");
}

void run(int argc, char** argv, Options& options) {
  auto session = smp::init(argc, argv,
                           {.pipeline_parallel_degree = 1,
                            .tensor_parallel_degree = options.tensor_parallel,
                            .microbatches = options.microbatches});
  const auto ratings = ratings_of(options);
  std::vector<double> alone;
  if (smp::rank() == 0 && options.check > 0 && !smp::is_planning()) {
    alone = losses_of_one_process(options, ratings);
  }
  alone = smp::broadcast(alone);
  Trainer trainer(options, ratings);
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    const auto losses = trainer.train(epoch);
    if (epoch == 0 && options.check > 0) compare(losses, alone);
    const auto ranking = trainer.rank();
    if (smp::rank() != 0) continue;
    const double loss =
        std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
    std::printf("epoch %d: loss %.4f, HR@10 %.3f, NDCG@10 %.3f of %.0f users\n", epoch + 1, loss,
                ranking.hit_ratio(), ranking.ndcg(), ranking.users);
  }
}

}  // namespace
}  // namespace ncf

int main(int argc, char** argv) {
  try {
    auto options = ncf::parse_options(argc, argv);
    if (options) ncf::run(argc, argv, *options);
  } catch (const std::exception& error) {
    smp::report_error(error);
    return 1;
  }
  return 0;
}
