// samples/ported/t5.cpp: a script that trains a T5 with pipeline and tensor parallelism, carried
// over; the rows of docs/migrating.md are what it is made of.
//
//     mpirun --oversubscribe -n 4 build/release/samples/ported/ported_t5
#include "t5/t5.h"

#include <ATen/CPUGeneratorImpl.h>
#include <smp/smp.h>
#include <torch/torch.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compare.h"

namespace ported {
namespace {

constexpr int kRows = 8, kLength = 12, kMicrobatches = 4, kSteps = 12, kSaved = 6;

t5::T5Config config_of_model() {
  t5::T5Config config;
  config.vocab_size = 40;
  config.d_model = 32;
  config.d_kv = 8;
  config.d_ff = 64;
  config.num_layers = config.num_decoder_layers = 2;
  config.num_heads = 4;
  config.dropout_rate = 0;  // so that one process has the same masks: none
  return config;
}

t5::T5 make_model() {
  torch::manual_seed(1);
  t5::T5 net(config_of_model());
  net->to(torch::kDouble);
  return net;
}

/// The number of a batch, to its texts and their labels: each text backwards, padded at its end.
Tensors batch_of(int number) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(number));
  auto ids = torch::randint(2, 40, {kRows, kLength}, generator, torch::kLong);
  ids.slice(1, kLength - 2).fill_(0);
  return {ids, ids.slice(1, 0, kLength - 2).flip(1)};
}

template <class Net>
Tensor loss_of(Net& net, const Tensor& ids, const Tensor& labels) {
  const auto logits = net(ids, labels);
  return torch::cross_entropy_loss(logits.flatten(0, 1), labels.flatten());
}

torch::optim::AdamW adamw(const Tensors& parameters) {
  return torch::optim::AdamW(parameters, torch::optim::AdamWOptions(1e-2).weight_decay(0.01));
}

/// What the checkpoint of a script has as its user content.
struct UserContent {
  int step = 0;
  std::vector<double> losses;
};

/// The script, from wrapping the model on.
class Script {
 public:
  Script() {
    smp::tensor_parallelism marks;  // smp.model_creation(tensor_parallelism=True)
    net_ = make_model();
    model_.emplace(net_);
    for (const auto& item : net_->named_modules()) {
      if (const auto block = std::dynamic_pointer_cast<t5::T5BlockImpl>(item.value())) {
        smp::set_activation_checkpointing(*block);
      }
    }
    optimizer_.emplace(*model_, adamw(model_->parameters()));
    scheduler_.emplace(**optimizer_, 4, 0.5);
  }

  /// Trains up to `last` steps.
  void train(int last) {
    auto& model = *model_;
    auto train_step = smp::step([&](const Tensor& ids, const Tensor& labels) {
      const auto loss = loss_of(model, ids, labels);
      model.backward(loss);
      return loss;
    });
    for (; content.step < last; ++content.step) {
      const auto shard = smp::data_shard();
      const auto batch = batch_of(content.step * shard.count + shard.index);
      optimizer_->zero_grad();
      const auto loss = train_step(batch[0], batch[1]).reduce_mean();
      model.clip_grad_norm_(1.0);
      optimizer_->step();
      scheduler_->step();
      content.losses.push_back(mean_of_replicas(loss.item<double>(), kRows));
    }
  }

  void save_checkpoint(const std::string& path) {
    smp::save_safetensors(*model_, path + ".model");
    smp::save_safetensors(smp::optimizer_state_dict(*model_, *optimizer_), path + ".optimizer");
    if (smp::rank() == 0) smp::save(content, path + ".user_content", {.partial = false});
    smp::barrier();
  }

  void resume_from_checkpoint(const std::string& path) {
    content = smp::load<UserContent>(path + ".user_content", {.partial = false});
    smp::set_step_count(content.step);
    for (int step = 0; step < content.step; ++step) scheduler_->step();
    smp::load_safetensors(*model_, path + ".model");
    smp::load_optimizer_state_dict(*model_, *optimizer_,  // which has the learning rate, too
                                   smp::load_safetensors(path + ".optimizer"));
  }

  std::size_t spread() { return model_->distributed_modules().size(); }

  UserContent content;

 private:
  t5::T5 net_{nullptr};
  std::optional<smp::DistributedModel<t5::T5>> model_;
  std::optional<smp::DistributedOptimizer<torch::optim::AdamW>> optimizer_;
  std::optional<torch::optim::StepLR> scheduler_;
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
      return loss_of(net, slice[0], slice[1]);
    }));
    torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
    optimizer.step();
    scheduler.step();
  }
  return losses;
}

int run(int argc, char** argv) {
  smp::Config config;
  config.pipeline_parallel_degree = 2;
  config.tensor_parallel_degree = 2;
  config.prescaled_batch = true;
  config.microbatches = kMicrobatches;
  config.active_microbatches = 4;
  config.optimize = "speed";
  auto session = smp::init(argc, argv, config);

  const std::string path = "ported_t5_" + std::to_string(smp::size());
  {
    Script first;
    first.train(kSaved);
    first.save_checkpoint(path);
    if (smp::rank() == 0) std::printf("%zu modules are spread over 2 ranks\n", first.spread());
  }
  Script second;  // after a restart
  second.resume_from_checkpoint(path);
  second.train(kSteps);
  smp::barrier();
  if (smp::rank() == 0) {
    for (const char* part : {".model", ".optimizer", ".user_content"}) {
      std::remove((path + part).c_str());
    }
  }
  const bool spread = second.spread() > 0;
  const int status = verdict("T5", second.content.losses, train_alone());
  return spread ? status : 1;
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
