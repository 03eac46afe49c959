// A BERT of routed modules against Hugging Face's: post-norm blocks, biases everywhere, three
// tables of embeddings, a head that reads the table of words.
#include <gtest/gtest.h>

#include "samples/reference.h"
#include "smp/smp.h"

namespace smp {
namespace bert_reference_test {

using torch::Tensor;

constexpr std::int64_t kWidth = 8;
constexpr std::int64_t kHeads = 2;

struct BertLayerImpl : torch::nn::Module {
  BertLayerImpl() {
    for (const char* name : {"query", "key", "value"}) add(self, name, kWidth, kWidth);
    add(attention_output, "dense", kWidth, kWidth);
    add(intermediate, "dense", kWidth, 12);
    add(output, "dense", 12, kWidth);
    const auto attention = std::make_shared<torch::nn::Module>();
    attention->register_module("self", self);
    attention->register_module("output", attention_output);
    attention_output->register_module("LayerNorm", attention_norm);
    output->register_module("LayerNorm", output_norm);
    register_module("attention", attention);
    register_module("intermediate", intermediate);
    register_module("output", output);
  }
  Tensor forward(const Tensor& x, const Tensor& mask) {
    const auto heads = [&](std::size_t i) {
      return linears[i](x).unflatten(-1, {kHeads, -1}).transpose(1, 2);
    };
    const auto scores = heads(0).matmul(heads(1).transpose(-1, -2)) /
                            std::sqrt(static_cast<double>(kWidth / kHeads)) +
                        mask;
    const auto context = scores.softmax(-1).matmul(heads(2)).transpose(1, 2).flatten(2);
    const auto attended = attention_norm(linears[3](context) + x);
    return output_norm(linears[5](torch::gelu(linears[4](attended))) + attended);
  }
  void add(const std::shared_ptr<torch::nn::Module>& parent, const char* name, std::int64_t inputs,
           std::int64_t outputs) {
    linears.push_back(parent->register_module(name, nn::Linear(inputs, outputs)));
  }
  static nn::LayerNorm norm() { return nn::LayerNorm(nn::LayerNormOptions({kWidth}).eps(1e-12)); }
  std::shared_ptr<torch::nn::Module> self = std::make_shared<torch::nn::Module>();
  std::shared_ptr<torch::nn::Module> attention_output = std::make_shared<torch::nn::Module>();
  std::shared_ptr<torch::nn::Module> intermediate = std::make_shared<torch::nn::Module>();
  std::shared_ptr<torch::nn::Module> output = std::make_shared<torch::nn::Module>();
  std::vector<nn::Linear> linears;
  nn::LayerNorm attention_norm = norm(), output_norm = norm();
};
SMP_MODULE(BertLayer);

struct BertEmbeddingsImpl : torch::nn::Module {
  BertEmbeddingsImpl() {
    words = register_parameter("words", torch::empty({23, kWidth}));
    positions = register_parameter("positions", torch::empty({10, kWidth}));
    kinds = register_parameter("kinds", torch::empty({2, kWidth}));
    norm = register_module("LayerNorm", BertLayerImpl::norm());
  }
  Tensor forward(const Tensor& ids, const Tensor& kinds_of_ids) {
    return norm(torch::embedding(words, ids) + torch::embedding(kinds, kinds_of_ids) + positions);
  }
  Tensor logits(const Tensor& hidden) { return torch::linear(hidden, words); }
  Tensor words, positions, kinds;
  nn::LayerNorm norm{nullptr};
};
SMP_MODULE(BertEmbeddings, logits);

struct BertImpl : torch::nn::Module {
  BertImpl() {
    embeddings = register_module("embeddings", BertEmbeddings());
    layers.push_back(register_module("layer0", BertLayer()));
    layers.push_back(register_module("layer1", BertLayer()));
    transform = register_module("transform", nn::Linear(kWidth, kWidth));
    norm = register_module("norm", BertLayerImpl::norm());
    bias = register_parameter("bias", torch::empty({23}));
  }
  Tensor forward(const Tensor& ids, const Tensor& present, const Tensor& kinds) {
    const auto mask = (1 - present.to(bias.dtype())).unsqueeze(1).unsqueeze(1) * -1e30;
    auto hidden = embeddings(ids, kinds);
    for (auto& layer : layers) hidden = layer(hidden, mask);
    return embeddings->logits(norm(torch::gelu(transform(hidden)))) + bias;
  }
  BertEmbeddings embeddings{nullptr};
  std::vector<BertLayer> layers;
  nn::Linear transform{nullptr};
  nn::LayerNorm norm{nullptr};
  Tensor bias;
};
SMP_MODULE(Bert);

hf::NameMap published_names() {
  hf::NameMap names(hf::Family::kBert);
  names.add({{"bert.embeddings.word_embeddings.weight", {"embeddings.words"}},
             {"bert.embeddings.position_embeddings.weight", {"embeddings.positions"}},
             {"bert.embeddings.token_type_embeddings.weight", {"embeddings.kinds"}},
             {"bert.embeddings.LayerNorm.*", {"embeddings.LayerNorm.*"}},
             {"bert.encoder.layer.{}.*", {"layer{}.*"}},
             {"cls.predictions.transform.LayerNorm.*", {"norm.*"}},
             {"cls.predictions.transform.dense.*", {"transform.*"}},
             {"cls.predictions.bias", {"bias"}}});
  return names;
}

TEST(BertReference, EqualsHuggingFaceOverRanks) {
  const auto expected = reference::read("bert_reference");
  const auto gradients =
      reference::as_own(reference::expected_gradients(expected), published_names());
  const auto in = [&](const char* name) { return expected.at(std::string("input.") + name); };
  Config settings;
  settings.microbatches = 1;
  settings.plan_cache = "off";
  for (const int ranks : {1, 3}) {
    run_local(
        ranks,
        [&] {
          Bert net;
          net->to(torch::kDouble);
          DistributedModel model(net);
          hf::load(model, reference::weights_file("bert"), published_names());
          auto run = step([&](const Tensor& ids, const Tensor& present, const Tensor& kinds,
                              const Tensor& labels) {
            const auto logits = model(ids, present, kinds);
            const auto loss =
                torch::nn::functional::cross_entropy(logits.flatten(0, 1), labels.flatten());
            model.backward(loss);
            return std::make_tuple(logits, loss);
          });
          const auto [logits, loss] =
              run(in("input_ids"), in("attention_mask"), in("token_type_ids"), in("labels"));
          reference::expect_close(logits.concat(), expected.at("logits"), "logits");
          reference::expect_close(loss.reduce_mean(), expected.at("loss"), "loss");
          for (const auto& [name, parameter] : model.local_named_parameters()) {
            reference::expect_close(parameter.grad(), gradients.at(name), "gradient of " + name);
          }
        },
        settings);
  }
}

}  // namespace bert_reference_test
}  // namespace smp
