// T5 1.0 and 1.1 against Hugging Face's: the same weights by the same names, the same scores, loss
// and gradient of every parameter. tests/data/make_references.py wrote the values.
#include <gtest/gtest.h>

#include "samples/reference.h"
#include "samples/small_t5.h"
#include "t5/t5.h"

namespace t5 {
namespace {

namespace reference = smp::reference;

struct Version {
  const char* name;
  bool is_gated, is_tied;
};

T5Config config_of(const Version& version) {
  auto config = small_config();
  config.is_gated_act = version.is_gated;
  config.tie_word_embeddings = version.is_tied;
  return config;
}

Tensor loss_of(const Tensor& logits, const Tensor& labels) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), labels.flatten());
}

class T5Reference : public testing::TestWithParam<Version> {
 protected:
  const T5Config config_ = config_of(GetParam());
  const std::string name_ = GetParam().name;
  const std::string weights_ = reference::weights_file(name_);
  const smp::StateDict expected_ = reference::read(name_ + "_reference");

  Tensor input(const char* name) const { return expected_.at(std::string("input.") + name); }
  T5 loaded(torch::Dtype dtype) const {
    T5 net(config_);
    net->to(dtype);
    smp::hf::load(*net, weights_, smp::hf::Family::kT5);
    return net;
  }
};

TEST_P(T5Reference, EqualsHuggingFace) {
  auto net = loaded(torch::kDouble);
  const auto logits = net->forward(input("input_ids"), input("labels"));
  const auto loss = loss_of(logits, input("labels"));
  reference::expect_close(logits, expected_.at("logits"), "logits");
  reference::expect_close(loss, expected_.at("loss"), "loss");
  loss.backward();
  reference::expect_same_gradients(reference::gradients_of(*net),
                                   reference::expected_gradients(expected_));
}

TEST_P(T5Reference, EqualsHuggingFaceInSinglePrecision) {
  auto net = loaded(torch::kFloat);
  const auto logits = net->forward(input("input_ids"), input("labels"));
  loss_of(logits, input("labels")).backward();
  // Kernels of processors sum in different orders: 3.2e-6 was seen with AVX-512.
  reference::expect_close(logits, expected_.at("logits"), "logits", 5e-6);
  reference::expect_same_gradients(reference::gradients_of(*net),
                                   reference::expected_gradients(expected_), 3e-5);
}

TEST_P(T5Reference, EqualsHuggingFaceOverRanks) {
  smp::Config settings;
  settings.microbatches = 1;
  settings.plan_cache = "off";
  smp::run_local(
      3,
      [&] {
        T5 net(config_);
        net->to(torch::kDouble);
        smp::DistributedModel model(net);
        smp::hf::load(model, weights_, smp::hf::Family::kT5);
        auto run = smp::step([&](const Tensor& ids, const Tensor& labels) {
          const auto logits = model(ids, labels);
          const auto loss = loss_of(logits, labels);
          model.backward(loss);
          return std::make_tuple(logits, loss);
        });
        const auto [logits, loss] = run(input("input_ids"), input("labels"));
        reference::expect_close(logits.concat(), expected_.at("logits"), "logits");
        reference::expect_close(loss.reduce_mean(), expected_.at("loss"), "loss");
        const auto gradients = reference::expected_gradients(expected_);
        for (const auto& [name, parameter] : model.local_named_parameters()) {
          reference::expect_close(parameter.grad(), gradients.at(name), "gradient of " + name);
        }
      },
      settings);
}

INSTANTIATE_TEST_SUITE_P(Versions, T5Reference,
                         testing::Values(Version{"t5_v1_0", false, true},
                                         Version{"t5_v1_1", true, false}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace t5
