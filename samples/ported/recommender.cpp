// samples/ported/recommender.cpp: a script that trains a recommender whose large table is pinned to
// a stage, on ragged batches of a class of its own, carried over; the rows of docs/migrating.md are
// what it is made of.
//
//     mpirun --oversubscribe -n 4 build/release/samples/ported/ported_recommender
#include <ATen/CPUGeneratorImpl.h>
#include <smp/smp.h>
#include <torch/torch.h>

#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compare.h"

namespace ported {

/// What users looked at, in rows of any length: a batch as the script's loader gives it.
class Histories {
 public:
  /// @param items   [N] int64, row after row
  /// @param begins  [B] int64, where each row begins in them
  Histories(Tensor items, Tensor begins) : items_(std::move(items)), begins_(std::move(begins)) {}
  const Tensor& items() const { return items_; }
  const Tensor& begins() const { return begins_; }
  std::int64_t rows() const { return begins_.size(0); }

  Histories rows_from(std::int64_t first, std::int64_t count) const {
    const auto begin_of = [&](std::int64_t row) {
      return row < rows() ? begins_[row].item<std::int64_t>() : items_.size(0);
    };
    const auto begin = begin_of(first), end = begin_of(first + count);
    return {items_.slice(0, begin, end), begins_.narrow(0, first, count) - begin};
  }

 private:
  Tensor items_, begins_;
};

}  // namespace ported

/// How a batch crosses ranks, and what a microbatch gets of it: the original's smp_slice().
template <>
struct smp::Codec<ported::Histories> {
  static void encode(Writer& out, const ported::Histories& all) {
    out.put(all.items());
    out.put(all.begins());
  }
  static ported::Histories decode(Reader& in) {
    auto items = in.get<torch::Tensor>();
    return {std::move(items), in.get<torch::Tensor>()};
  }
  static ported::Histories slice(const ported::Histories& all, int microbatch, int microbatches) {
    const auto rows = microbatch_rows(all.rows(), microbatch, microbatches);
    return all.rows_from(rows.start, rows.length);
  }
  static std::int64_t rows(const ported::Histories& all) { return all.rows(); }
};

namespace ported {
namespace {

constexpr int kItems = 64, kUsers = 40, kWidth = 16;
constexpr int kRows = 10, kMicrobatches = 4, kEpochs = 8;
constexpr double kRate = 0.05;

namespace nn = smp::nn;

struct RecommenderImpl : torch::nn::Module {
  RecommenderImpl() {
    {
      smp::partition here(1);  // the large table
      const auto options = nn::EmbeddingBagOptions(kItems, kWidth).mode(torch::kMean);
      items = register_module("items", nn::EmbeddingBag(options));
    }
    users = register_module("users", nn::Embedding(kUsers, kWidth));
    hidden = register_module("hidden", nn::Linear(2 * kWidth, 32));
    score = register_module("score", nn::Linear(32, 1));
  }
  /// users [B], and what each looked at; to logits [B].
  Tensor forward(const Tensor& who, const Histories& seen) {
    const auto both = torch::cat({users(who), items(seen.items(), seen.begins())}, 1);
    return score(torch::relu(hidden(both))).squeeze(1);
  }
  nn::EmbeddingBag items{nullptr};
  nn::Embedding users{nullptr};
  nn::Linear hidden{nullptr}, score{nullptr};
};
SMP_MODULE(Recommender);

Recommender make_model() {
  torch::manual_seed(3);
  Recommender net;
  net->to(torch::kDouble);
  return net;
}

struct Batch {
  Tensor users;
  Histories seen;
  Tensor clicked;
};

/// The number of a batch to it. Users click if they looked at more even items than odd ones.
Batch batch_of(int number) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(number));
  const auto lengths = torch::randint(1, 6, {kRows}, generator, torch::kLong);
  const auto begins = lengths.cumsum(0) - lengths;
  const auto items =
      torch::randint(kItems, {lengths.sum().item<std::int64_t>()}, generator, torch::kLong);
  const auto odd = torch::zeros({kRows}, torch::kDouble)
                       .index_add(0, torch::arange(kRows).repeat_interleave(lengths),
                                  (items % 2).to(torch::kDouble));
  return {torch::randint(kUsers, {kRows}, generator, torch::kLong),
          {items, begins},
          (odd < lengths / 2).to(torch::kDouble)};
}

/// A sum: the script turns averaging off (average_grads_across_microbatches=False).
template <class Net>
Tensor loss_of(Net& net, const Tensor& users, const Histories& seen, const Tensor& clicked) {
  return torch::binary_cross_entropy_with_logits(net(users, seen), clicked, {}, {},
                                                 at::Reduction::Sum);
}

torch::optim::Adagrad adagrad(const Tensors& parameters) {
  return torch::optim::Adagrad(parameters, torch::optim::AdagradOptions(kRate));
}

/// How many batches replica `replica` has in an epoch: they end unevenly.
int batches_of(int replica) { return 6 - replica % 2; }

int number_of(int epoch, int replica, int round) { return 1000 * epoch + 100 * replica + round; }

/// A step of the optimizer for every `kPasses` steps of the model (backward_passes_per_step=2).
constexpr int kPasses = 2;

class Script {
 public:
  Script() {
    model_.set_partition("users", 0);
    placed_ = smp::register_post_partition_hook(model_, [this] {
      std::printf("rank %d has %zu parameters%s\n", smp::rank(), model_.local_parameters().size(),
                  model_.owns(net_->items->weight) ? ", the large table among them" : "");
    });
    if (smp::rank() != 0 && smp::pp_rank() == 0) placed_.remove();  // one line of a replica's
    optimizer_.emplace(model_, adagrad(model_.parameters()));
  }

  /// Returns the sum of the losses of an epoch, of all replicas.
  double train(int epoch) {
    auto train_step =
        smp::step([this](const Tensor& users, const Histories& seen, const Tensor& clicked) {
          const auto loss = loss_of(model_, users, seen, clicked);
          model_.backward(loss);
          return loss;
        });
    const int replica = smp::dp_rank();
    double sum = 0;
    int round = 0;
    smp::Join join;  // with model.join(): replicas have different numbers of batches
    while (join.next(round < batches_of(replica))) {
      const auto [users, seen, clicked] = batch_of(number_of(epoch, replica, round));
      const bool last_pass = ++round % kPasses == 0;
      if (last_pass) {
        const auto loss = train_step(users, seen, clicked);
        if (join.active()) sum += loss.reduce_sum().item<double>();
        optimizer_->step();
        optimizer_->zero_grad();
      } else {
        const auto apart = model_.no_sync();
        const auto loss = train_step(users, seen, clicked);
        if (join.active()) sum += loss.reduce_sum().item<double>();
      }
    }
    double all = 0;
    for (const double own : smp::all_gather(sum, smp::Group::kDp)) all += own;
    return all;
  }

  /// The share of clicks that are foretold, over all replicas.
  double accuracy() {
    const torch::NoGradGuard no_grad;
    model_.eval();
    auto test_step = smp::step(
        [this](const Tensor& users, const Histories& seen) { return model_(users, seen) > 0; });
    const auto batch = batch_of(100000 + smp::dp_rank());
    const auto found = test_step(batch.users, batch.seen).concat();
    model_.train();
    return mean_of_replicas((found == batch.clicked).to(torch::kDouble).mean().item<double>(),
                            kRows);
  }

  /// Stage 1 tells stage 0 how long the rows of its table are.
  void tell_of_table() {
    if (smp::pp_rank() == 1) {
      smp::send(net_->items->weight.norm().item<double>(), {0, smp::Group::kPp});
    } else {
      const auto norm = smp::recv_from<double>({1, smp::Group::kPp});
      if (smp::rank() == 0) std::printf("norm of the large table %.3f\n", norm);
    }
  }

  bool table_is_pinned() { return model_.plan().stage_of("items") == 1; }

 private:
  Recommender net_ = make_model();
  smp::DistributedModel<Recommender> model_{net_};
  std::optional<smp::DistributedOptimizer<torch::optim::Adagrad>> optimizer_;
  smp::PostPartitionHook placed_;
};

/// The sums of the losses of all epochs, in plain LibTorch.
std::vector<double> train_alone() {
  auto net = make_model();
  auto optimizer = adagrad(net->parameters());
  std::vector<double> losses;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    double sum = 0;
    for (int round = 0; round < batches_of(0); ++round) {
      for (int replica = 0; replica < smp::dp_size(); ++replica) {
        if (round >= batches_of(replica)) continue;
        const auto batch = batch_of(number_of(epoch, replica, round));
        const auto loss = loss_of(net, batch.users, batch.seen, batch.clicked);
        loss.backward();
        sum += loss.item<double>();
      }
      if ((round + 1) % kPasses != 0) continue;
      optimizer.step();
      optimizer.zero_grad();
    }
    losses.push_back(sum);
  }
  return losses;
}

int run(int argc, char** argv) {
  smp::Config config;
  config.pipeline_parallel_degree = 2;
  config.microbatches = kMicrobatches;
  config.auto_partition = false;
  config.default_partition = 0;
  config.loss = "sum";
  auto session = smp::init(argc, argv, config);

  Script script;
  std::vector<double> losses;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    losses.push_back(script.train(epoch));
    if (smp::rank() == 0) std::printf("epoch %d loss %.4f\n", epoch, losses.back());
  }
  script.tell_of_table();
  const double learnt = script.accuracy();
  if (smp::rank() == 0) std::printf("%.0f %% of clicks foretold\n", 100 * learnt);
  const int status = verdict("recommender", losses, train_alone());
  return script.table_is_pinned() ? status : 1;
}

}  // namespace
}  // namespace ported

int main(int argc, char** argv) {
  try {
    return ported::run(argc, argv);
  } catch (const std::exception& error) {
    smp::report_error(error);
    return 1;
  }
}
