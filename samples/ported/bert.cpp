// samples/ported/bert.cpp: a script that trains a BERT with a sharded optimizer and a scaled loss,
// carried over; the rows of docs/migrating.md are what it is made of.
//
//     mpirun --oversubscribe -n 4 build/release/samples/ported/ported_bert
#include <ATen/CPUGeneratorImpl.h>
#include <smp/smp.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "compare.h"

namespace ported {
namespace {

constexpr int kWords = 60, kWidth = 32, kHeads = 4, kDepth = 4, kLength = 16;
constexpr int kRows = 10, kMicrobatches = 4, kSteps = 12, kSaved = 5;  // rows do not divide evenly
constexpr int kMask = 1;                                               // the word that hides others

namespace nn = smp::nn;

/// Attention and two products, each with its residual sum and a norm after it.
struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : projected(register_module("projected", nn::Linear(kWidth, 3 * kWidth))),
        joined(register_module("joined", nn::Linear(kWidth, kWidth))),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})))),
        wide(register_module("wide", nn::Linear(kWidth, 4 * kWidth))),
        narrow(register_module("narrow", nn::Linear(4 * kWidth, kWidth))),
        last_norm(register_module("last_norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})))) {}
  Tensor forward(Tensor x) {
    const auto parts = projected(x).view({x.size(0), x.size(1), 3, kHeads, kWidth / kHeads});
    const auto heads = parts.permute({2, 0, 3, 1, 4}).unbind();  // q, k, v: [B, H, S, D]
    const auto attended = at::scaled_dot_product_attention(heads[0], heads[1], heads[2]);
    x = norm(x + joined(attended.transpose(1, 2).flatten(2)));
    return last_norm(x + narrow(torch::gelu(wide(x))));
  }
  nn::Linear projected, joined;
  nn::LayerNorm norm;
  nn::Linear wide, narrow;
  nn::LayerNorm last_norm;
};
SMP_MODULE(Block);

/// The table of words, which the head reads as well.
struct WordsImpl : torch::nn::Module {
  WordsImpl() : weight(register_parameter("weight", torch::randn({kWords, kWidth}) * 0.3)) {}
  Tensor forward(const Tensor& words) { return torch::embedding(weight, words); }
  Tensor scores(const Tensor& hidden) { return torch::linear(hidden, weight); }
  Tensor weight;
};
SMP_MODULE(Words, scores);

struct BertImpl : torch::nn::Module {
  BertImpl()
      : words(register_module("words", Words())),
        places(register_module("places", nn::Embedding(kLength, kWidth))) {
    for (int i = 0; i < kDepth; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
  }
  /// words [B, S] and their places [S] to scores [B, S, kWords].
  Tensor forward(const Tensor& ids, const Tensor& positions) {
    return words->scores(blocks(words(ids) + places(positions)));
  }
  Words words;
  nn::Embedding places;
  nn::Sequential blocks;
};
SMP_MODULE(Bert);

Bert make_model() {
  torch::manual_seed(2);
  Bert net;
  net->to(torch::kDouble);
  return net;
}

/// The number of a batch, to texts in which some words are hidden, and the hidden words (-100:
/// seen). Each text counts upwards from some word, so they can be guessed.
Tensors batch_of(int number) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(number));
  const auto first = torch::randint(2, kWords, {kRows, 1}, generator, torch::kLong);
  const auto text = (first + torch::arange(kLength) - 2) % (kWords - 2) + 2;
  const auto hidden = torch::rand({kRows, kLength}, generator) < 0.2;
  hidden.select(1, 0).fill_(true);  // in every microbatch one at least
  return {text.masked_fill(hidden, kMask), text.masked_fill(~hidden, -100)};
}

template <class Net>
Tensor loss_of(Net& net, const Tensor& ids, const Tensor& hidden, const Tensor& positions) {
  const auto scores = net(ids, positions);
  return torch::cross_entropy_loss(scores.flatten(0, 1), hidden.flatten());
}

torch::optim::AdamW adamw(const Tensors& parameters) {
  return torch::optim::AdamW(parameters, torch::optim::AdamWOptions(5e-3));
}

class Script {
 public:
  Script() {
    optimizer_.emplace(model_, adamw(model_.parameters()));
    scheduler_.emplace(**optimizer_, 4, 0.5);
    smp::set_activation_checkpointing(net_->blocks, {.strategy = "contiguous"});
    // The original's scripts make the masters of fp16 in this hook, and count the first step.
    after_step_ = smp::register_post_step_hook([this] { ++steps_seen; });
  }

  void train(int last) {
    auto train_step = smp::step(
        [this](const Tensor& ids, const Tensor& hidden, const Tensor& positions) {
          const auto loss = loss_of(model_, ids, hidden, positions);
          model_.backward(scaler_.scale(loss));
          return loss;
        },
        {.non_split = {2}});
    for (; done < last; ++done) {
      const auto shard = smp::data_shard();
      const auto batch = batch_of(done * shard.count + shard.index);
      optimizer_->zero_grad();
      const auto loss =
          train_step(batch[0], batch[1], torch::arange(kLength)).reduce_mean().item<double>();
      scaler_.unscale_(*optimizer_);
      model_.clip_grad_norm_(0.5);
      const bool overflow = !scaler_.step(*optimizer_);
      scaler_.update();
      if (!overflow) scheduler_->step();
      losses.push_back(mean_of_replicas(loss, kRows));
    }
  }

  /// The model part by part; the optimizer as a whole, whichever replica keeps what of its state.
  void save(const std::string& path) {
    smp::save(model_.local_state_dict(), path + ".model");
    const auto state = smp::optimizer_state_dict(model_, *optimizer_);
    if (smp::rank() == 0) smp::save(state, path + ".optimizer", {.partial = false});
    if (smp::rank() == 0) smp::save(losses, path + ".losses", {.partial = false});
    if (smp::rank() == 0) smp::save(scaler_.state_dict(), path + ".scaler", {.partial = false});
    smp::barrier();
  }

  void load(const std::string& path) {
    losses = smp::load<std::vector<double>>(path + ".losses", {.partial = false});
    done = static_cast<int>(losses.size());
    smp::set_step_count(done);
    for (int step = 0; step < done; ++step) scheduler_->step();  // the dict has the rate itself
    model_.load_state_dict(smp::load(path + ".model"));
    smp::load_optimizer_state_dict(model_, *optimizer_,
                                   smp::load(path + ".optimizer", {.partial = false}));
    scaler_.load_state_dict(smp::load(path + ".scaler", {.partial = false}));
  }

  /// The share of hidden words that are found, over all replicas.
  double accuracy() {
    const torch::NoGradGuard no_grad;
    model_.eval();
    auto test_step =
        smp::step([this](const Tensor& ids,
                         const Tensor& positions) { return model_(ids, positions).argmax(2); },
                  {.non_split = {1}});
    const auto batch = batch_of(1000 + smp::dp_rank());
    const auto found = test_step(batch[0], torch::arange(kLength)).concat();
    const auto asked = batch[1] >= 0;
    model_.train();
    const auto right = (found == batch[1]).logical_and(asked).sum().item<double>();
    return mean_of_replicas(right / asked.sum().item<double>(), kRows);
  }

  /// Bytes of Adam's moments on this rank.
  double bytes_of_moments() {
    double bytes = 0;
    for (const auto& item : (*optimizer_)->state()) {
      const auto& state = static_cast<const torch::optim::AdamWParamState&>(*item.second);
      bytes += static_cast<double>(state.exp_avg().nbytes() + state.exp_avg_sq().nbytes());
    }
    return bytes;
  }

  int done = 0, steps_seen = 0;
  std::vector<double> losses;

 private:
  Bert net_ = make_model();
  smp::DistributedModel<Bert> model_{net_};
  std::optional<smp::DistributedOptimizer<torch::optim::AdamW>> optimizer_;
  std::optional<torch::optim::StepLR> scheduler_;
  // dynamic_loss_args = {"init_scale": 2**16, "scale_window": 1000, "delayed_shift": 2}
  smp::GradScaler scaler_{{.init_scale = 65536, .growth_interval = 1000, .hysteresis = 2}};
  smp::PostStepHook after_step_;
};

std::vector<double> train_alone() {
  auto net = make_model();
  auto optimizer = adamw(net->parameters());
  torch::optim::StepLR scheduler(optimizer, 4, 0.5);
  const int replicas = smp::data_shard().count;
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Tensors> batches;
    for (int i = 0; i < replicas; ++i) batches.push_back(batch_of(step * replicas + i));
    optimizer.zero_grad();
    losses.push_back(step_alone(batches, kMicrobatches, [&](const Tensors& slice) {
      return loss_of(net, slice[0], slice[1], torch::arange(kLength));
    }));
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    optimizer.step();
    scheduler.step();
  }
  return losses;
}

int run(int argc, char** argv) {
  smp::Config config;
  config.pipeline_parallel_degree = 2;
  config.microbatches = kMicrobatches;
  config.shard_optimizer_state = true;
  config.pipeline = "interleaved";
  config.memory_weight = 0.8;
  config.placement_strategy = "spread";
  auto session = smp::init(argc, argv, config);

  const std::string path = "ported_bert_" + std::to_string(smp::size());
  double shared = 0;
  {
    Script first;
    first.train(kSaved);
    first.save(path);
    shared = first.bytes_of_moments();
  }
  Script second;  // after a restart
  second.load(path);
  second.train(kSteps);
  const double learnt = second.accuracy();
  double moments = 0;
  for (const double bytes : smp::all_gather(shared)) moments += bytes;
  double whole = 0;
  for (const auto& parameter : make_model()->parameters()) {
    whole += 2. * static_cast<double>(parameter.nbytes());
  }
  if (smp::rank() == 0) {
    std::printf("%d steps after the restart; %.0f %% of hidden words found\n", second.steps_seen,
                100 * learnt);
    std::printf("Adam's moments are held %.2f times in %d replicas\n", moments / whole,
                smp::rdp_size());
    for (const char* part : {".optimizer", ".losses", ".scaler"}) {
      std::remove((path + part).c_str());
    }
  }
  smp::barrier();
  if (smp::rdp_rank() == 0) {
    std::remove((path + ".model_" + std::to_string(smp::pp_rank()) + "_0").c_str());
  }
  const int status = verdict("BERT", second.losses, train_alone());
  return moments == whole && second.steps_seen == kSteps - kSaved + 1 ? status : 1;
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
