// Calls of the original that are here under other names: slices of the user's own types, and which
// parameters are sliced.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "api/two_ranks.h"
#include "smp/tp.h"

namespace smp {
namespace calls_test {

/// As a data loader may give it: no codec, and a slice that is of another type.
class Images {
 public:
  explicit Images(std::vector<at::Tensor> images) : images_(std::move(images)) {}
  /// What smp_slice() is in the original.
  std::vector<at::Tensor> slice(int microbatch, int microbatches) const {
    const auto count = images_.size() / static_cast<std::size_t>(microbatches);
    const auto begin = images_.begin() + static_cast<std::ptrdiff_t>(count) * microbatch;
    return {begin, begin + static_cast<std::ptrdiff_t>(count)};
  }

 private:
  std::vector<at::Tensor> images_;
};

nn::Sequential make_net() {
  torch::manual_seed(2);
  nn::Sequential net(nn::Linear(3, 4), nn::Linear(4, 1));
  net->to(torch::kDouble);
  return net;
}

std::vector<at::Tensor> images() {
  torch::manual_seed(9);
  std::vector<at::Tensor> all;
  for (int rows = 1; rows <= 4; ++rows) all.push_back(torch::randn({rows, 3}, torch::kDouble));
  return all;
}

TEST(UsersSlices, OfATypeWithoutCodecAreTakenInTheBody) {
  auto plain = make_net();
  for (const auto& image : images()) (plain->forward(image).sum() / 2).backward();
  run_local(2,
            [&] {
              auto net = make_net();
              DistributedModel model(net);
              const Images batch(images());
              auto train = step(
                  [&](const Images& all) {
                    at::Tensor loss = torch::zeros({}, torch::kDouble);
                    for (const auto& image : all.slice(current_microbatch(), num_microbatches())) {
                      loss = loss + model(image).sum();
                    }
                    model.backward(loss);
                    return loss;
                  },
                  {.non_split = {0}});
              train(batch);
              for (const auto& [name, parameter] : model.local_named_parameters()) {
                EXPECT_TRUE(torch::allclose(parameter.grad(),
                                            plain->named_parameters()[name].grad(), 1e-12, 1e-14))
                    << name;
              }
            },
            {.microbatches = 2, .plan_cache = "off"});
}

/// Images of several sizes, one a row of the batch.
class ImageList {
 public:
  explicit ImageList(std::vector<at::Tensor> images) : images_(std::move(images)) {}
  const std::vector<at::Tensor>& images() const { return images_; }

 private:
  std::vector<at::Tensor> images_;
};

}  // namespace calls_test

template <>
struct Codec<calls_test::ImageList> {
  static void encode(Writer& out, const calls_test::ImageList& list) { out.put(list.images()); }
  static calls_test::ImageList decode(Reader& in) {
    return calls_test::ImageList(in.get<std::vector<at::Tensor>>());
  }
};

namespace calls_test {

TEST(UsersSlices, OfATypeWithACodecAreWhatItsPartsAre) {
  const auto labels = torch::arange(4., torch::kDouble);
  auto plain = make_net();
  for (std::size_t i = 0; i < 4; ++i) {
    const auto label = labels[static_cast<std::int64_t>(i)];
    ((plain->forward(images()[i]).sum() - label).pow(2) / 4).backward();
  }
  run_local(2,
            [&] {
              auto net = make_net();
              DistributedModel model(net);
              auto train = step([&](const ImageList& list, const at::Tensor& of) {
                EXPECT_EQ(list.images().size(), 2U);
                at::Tensor loss = torch::zeros({}, torch::kDouble);
                for (std::size_t i = 0; i < list.images().size(); ++i) {
                  const auto label = of[static_cast<std::int64_t>(i)];
                  loss = loss + (model(list.images()[i]).sum() - label).pow(2) / 2;
                }
                model.backward(loss);
              });
              train(ImageList(images()), labels);
              for (const auto& [name, parameter] : model.local_named_parameters()) {
                EXPECT_TRUE(torch::allclose(parameter.grad(),
                                            plain->named_parameters()[name].grad(), 1e-12, 1e-14))
                    << name;
              }
            },
            {.microbatches = 2, .plan_cache = "off"});
}

struct MixedImpl : torch::nn::Module {
  MixedImpl()
      : whole(register_module("whole", nn::Linear(4, 4))),
        sliced(register_module("sliced", nn::DistributedLinear(4, 4))),
        buffer(register_buffer("buffer", torch::ones({2}))) {}
  at::Tensor forward(const at::Tensor& x) { return sliced(whole(x)); }
  nn::Linear whole;
  nn::DistributedLinear sliced;
  at::Tensor buffer;
};
SMP_MODULE(Mixed);

std::vector<std::string> names_of(const DistributedModelBase::NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

TEST(OriginalSlices, AreToldFromWholeParameters) {
  Config config;
  config.pipeline_parallel_degree = 1;
  config.tensor_parallel_degree = 2;
  run_local(
      4,
      [] {
        Mixed net;
        DistributedModel model(net);
        EXPECT_TRUE(model.is_distributed_parameter(net->sliced->weight));
        EXPECT_FALSE(model.is_distributed_parameter(net->whole->weight));
        EXPECT_THAT(names_of(model.scaled_batch_reducer_named_parameters()),
                    testing::ElementsAre("sliced.weight"));
        EXPECT_THAT(names_of(model.default_reducer_named_parameters()),
                    testing::ElementsAre("whole.weight", "whole.bias", "sliced.bias"));
      },
      config);
}

struct CountingImpl : DistributedModule {
  CountingImpl() : count(register_buffer("count", torch::zeros({1}))) {
    register_slice("weight", torch::ones({2, 4}), 1);
  }
  at::Tensor forward(const at::Tensor& x) { return x; }
  at::Tensor count;
};
SMP_MODULE(Counting);

struct WithCountsImpl : torch::nn::Module {
  WithCountsImpl()
      : counting(register_module("counting", Counting())),
        countingless(register_module("countingless", nn::BatchNorm1d(3))),
        own(register_buffer("own", torch::ones({2}))) {}
  at::Tensor forward(const at::Tensor& x) { return x; }
  Counting counting;
  nn::BatchNorm1d countingless;
  at::Tensor own;
};
SMP_MODULE(WithCounts);

TEST(OriginalSlices, BuffersAreWholeAndSeeTheBatchOfTheirModule) {
  Config config;
  config.pipeline_parallel_degree = 1;
  config.tensor_parallel_degree = 2;
  run_local(
      2,
      [] {
        WithCounts net;
        DistributedModel model(net);
        for (const auto& [name, buffer] : model.named_buffers()) {
          EXPECT_FALSE(is_distributed_buffer(model, buffer)) << name;
        }
        EXPECT_TRUE(is_scaled_batch_buffer(model, net->counting->count));
        EXPECT_FALSE(is_scaled_batch_buffer(model, net->countingless->running_mean));
        EXPECT_FALSE(is_scaled_batch_buffer(model, net->own));
        const auto refused =
            refusal<UsageError>([&] { is_scaled_batch_buffer(model, model.parameters()[0]); });
        EXPECT_THAT(refused, testing::HasSubstr("no buffer of the model"));
      },
      config);
}

}  // namespace calls_test
}  // namespace smp
