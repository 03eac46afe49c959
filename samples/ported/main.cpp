// samples/ported/main.cpp: a training program as SageMaker's model parallelism has them, carried
// over; docs/migrating.md shows both side by side.
//
//     mpirun --oversubscribe -n 4 build/release/samples/ported/ported
#include <ATen/CPUGeneratorImpl.h>
#include <smp/smp.h>
#include <torch/torch.h>

#include <cstdio>
#include <string>

constexpr int kWords = 200, kClasses = 4, kWidth = 32, kDepth = 4;

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : norm(register_module("norm", smp::nn::LayerNorm(smp::nn::LayerNormOptions({kWidth})))),
        wide(register_module("wide", smp::nn::Linear(kWidth, 4 * kWidth))),
        narrow(register_module("narrow", smp::nn::Linear(4 * kWidth, kWidth))) {}
  torch::Tensor forward(torch::Tensor x) { return x + narrow(torch::gelu(wide(norm(x)))); }
  smp::nn::LayerNorm norm;
  smp::nn::Linear wide, narrow;
};
SMP_MODULE(Block);

struct ClassifierImpl : torch::nn::Module {
  ClassifierImpl() {
    {
      smp::partition here(0);
      table = register_module("table", smp::nn::Embedding(kWords, kWidth));
    }
    for (int i = 0; i < kDepth; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
    {
      smp::partition here(1);
      head = register_module("head", smp::nn::Linear(kWidth, kClasses));
    }
  }
  torch::Tensor forward(torch::Tensor words) { return head(blocks(table(words).mean(1))); }
  smp::nn::Embedding table{nullptr};
  smp::nn::Sequential blocks;
  smp::nn::Linear head{nullptr};
};
SMP_MODULE(Classifier);

struct Progress {
  int epoch = 0;
  double loss = 0;
};

struct Batch {
  torch::Tensor words, labels;
};

/// Texts whose class is that of their first word; `number` is of the batch, in the whole job.
Batch batch_of(int number) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(number));
  auto words = torch::randint(kWords, {32, 6}, generator, torch::kLong);
  auto labels = words.select(1, 0).remainder(kClasses);
  words = words.masked_fill(torch::arange(6) > 0, 0);
  return {words, labels};
}

int main(int argc, char** argv) {
  smp::Config config;
  config.pipeline_parallel_degree = 2;
  config.microbatches = 4;
  config.shard_optimizer_state = true;
  auto session = smp::init(argc, argv, config);

  torch::manual_seed(1);
  Classifier net;
  net->to(smp::device());
  smp::DistributedModel model(net);
  smp::DistributedOptimizer optimizer(model, torch::optim::AdamW(model.parameters(), 1e-2));
  torch::optim::StepLR scheduler(*optimizer, 2, 0.5);

  model.on_placed([&] {
    std::printf("rank %d holds %zu parameters\n", smp::rank(), model.local_parameters().size());
  });
  int steps = 0;
  auto counting = smp::register_post_step_hook([&] { ++steps; });

  auto train_step = smp::step([&](torch::Tensor words, torch::Tensor labels) {
    auto loss = torch::cross_entropy_loss(model(words), labels);
    model.backward(loss);
    return loss;
  });
  auto test_step = smp::step(
      [&](torch::Tensor words, torch::Tensor labels) { return model(words).argmax(1) == labels; });

  auto accuracy = [&] {
    torch::NoGradGuard no_grad;
    model.eval();
    const auto [words, labels] = batch_of(1000 + smp::dp_rank());
    const auto right = test_step(words, labels).concat().to(torch::kDouble).mean();
    model.train();
    double sum = 0;
    for (const double share : smp::all_gather(right.item<double>(), smp::Group::kDp)) sum += share;
    return sum / smp::dp_size();
  };

  const std::string path = "ported_" + std::to_string(smp::size());
  Progress progress;
  for (; progress.epoch < 4; ++progress.epoch) {
    for (int i = 0; i < 30; ++i) {
      const auto [index, count] = smp::data_shard();
      const auto [words, labels] = batch_of((30 * progress.epoch + i) * count + index);
      optimizer.zero_grad();
      progress.loss = train_step(words, labels).reduce_mean().item<double>();
      model.clip_grad_norm_(1.0);
      optimizer.step();
    }
    scheduler.step();
    if (smp::rank() == 0) std::printf("epoch %d loss %.4f\n", progress.epoch, progress.loss);
  }
  const double learnt = accuracy();

  smp::save(model.local_state_dict(), path + ".model");
  const auto state = smp::optimizer_state_dict(model, optimizer);
  if (smp::rank() == 0) smp::save(state, path + ".optimizer", {.partial = false});
  if (smp::rank() == 0) smp::save(progress, path + ".progress", {.partial = false});
  smp::save_safetensors(model, path + ".safetensors");
  smp::barrier();

  {
    torch::NoGradGuard no_grad;
    for (auto& parameter : model.local_parameters()) parameter.zero_();
  }
  model.load_state_dict(smp::load(path + ".model"));
  smp::load_optimizer_state_dict(model, optimizer,
                                 smp::load(path + ".optimizer", {.partial = false}));
  progress = smp::load<Progress>(path + ".progress", {.partial = false});

  if (smp::pp_rank() == 1) smp::send(progress.epoch, {0, smp::Group::kPp});
  if (smp::pp_rank() == 0) {
    const int theirs = smp::recv_from<int>({1, smp::Group::kPp});
    if (theirs != progress.epoch) return 1;
  }
  const double again = accuracy();
  if (smp::rank() == 0) {
    std::printf("%d steps, accuracy %.3f, after a restart %.3f\n", steps, learnt, again);
    for (const char* whole : {".optimizer", ".progress", ".safetensors"}) {
      std::remove((path + whole).c_str());
    }
  }
  smp::barrier();
  if (smp::rdp_rank() == 0) {
    std::remove((path + ".model_" + std::to_string(smp::pp_rank()) + "_0").c_str());
  }
  return learnt == again && learnt > 0.9 ? 0 : 1;
}
