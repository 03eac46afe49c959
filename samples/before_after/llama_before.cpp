// Trains a Llama on the bytes of a text: rotary positions, grouped queries, SwiGLU, AdamW with
// warm-up and cosine, gradients clipped. Prints the loss of text that it does not train on.
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace nn = torch::nn;
using torch::Tensor;

// ---- settings ----------------------------------------------------------------------------------

struct Settings {
  std::string text;      // a file
  int64_t context = 64;  // tokens that the model sees
  int64_t width = 64;
  int64_t inner = 176;  // of the MLP
  int64_t layers = 4;
  int64_t heads = 4;     // of queries
  int64_t kv_heads = 2;  // of keys and values
  int64_t rows = 16;     // of a batch
  int64_t steps = 100;
  int64_t report = 20;    // steps between two losses
  int64_t warm_up = 10;   // steps
  double rate = 3e-3;     // the highest
  double floor = 0.1;     // of the rate, at the end
  double decay = 0.1;     // of weights
  double clip = 1.0;      // norm of the gradient
  double epsilon = 1e-5;  // of norms
  double theta = 10000;   // of positions
  std::string dtype = "float";
};

/// Reads "--name value" for each of the above.
Settings settings_of(int argc, char** argv) {
  Settings settings;
  const std::map<std::string, int64_t*> numbers{
      {"--context", &settings.context}, {"--width", &settings.width},
      {"--inner", &settings.inner},     {"--layers", &settings.layers},
      {"--heads", &settings.heads},     {"--kv_heads", &settings.kv_heads},
      {"--rows", &settings.rows},       {"--steps", &settings.steps},
      {"--report", &settings.report},   {"--warm_up", &settings.warm_up}};
  const std::map<std::string, double*> reals{
      {"--rate", &settings.rate}, {"--floor", &settings.floor},     {"--decay", &settings.decay},
      {"--clip", &settings.clip}, {"--epsilon", &settings.epsilon}, {"--theta", &settings.theta}};
  const std::map<std::string, std::string*> texts{{"--text", &settings.text},
                                                  {"--dtype", &settings.dtype}};
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (numbers.count(name) > 0) {
      *numbers.at(name) = std::stoll(value);
    } else if (reals.count(name) > 0) {
      *reals.at(name) = std::stod(value);
    } else if (texts.count(name) > 0) {
      *texts.at(name) = value;
    } else {
      throw std::invalid_argument("there is no " + name);
    }
  }
  if (settings.text.empty()) throw std::invalid_argument("say --text FILE");
  return settings;
}

// ---- text --------------------------------------------------------------------------------------

constexpr int64_t kTokens = 256;  // a token is a byte

/// The bytes of a file, of which the last part is held out.
class Text {
 public:
  Text(const std::string& path, int64_t context) : context_(context) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + path);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    std::vector<int64_t> tokens;
    for (const char byte : bytes) tokens.push_back(static_cast<unsigned char>(byte));
    tokens_ = torch::tensor(tokens, torch::kLong);
    training_ = tokens_.size(0) * 9 / 10;
    if (training_ <= context + 1 || tokens_.size(0) - training_ <= context + 1) {
      throw std::runtime_error(path + " is too short");
    }
  }

  /// Returns [rows, context + 1] tokens of each step's own places in the text.
  Tensor batch(int64_t step, int64_t rows) const { return at(0, training_, step * rows, rows); }
  /// Returns the same of what is held out.
  Tensor held_out(int64_t rows) const { return at(training_, tokens_.size(0), 0, rows); }

 private:
  Tensor at(int64_t from, int64_t to, int64_t first, int64_t rows) const {
    const int64_t places = to - from - context_;
    std::vector<Tensor> all;
    for (int64_t row = first; row < first + rows; ++row) {
      all.push_back(tokens_.narrow(0, from + (row * 7919) % places, context_ + 1));
    }
    return torch::stack(all);
  }

  const int64_t context_;
  Tensor tokens_;
  int64_t training_;
};

// ---- model: B rows, T tokens, D elements of a head ---------------------------------------------

class RmsNormImpl : public torch::nn::Module {
 public:
  RmsNormImpl(int64_t width, double epsilon)
      : weight_(register_parameter("weight", torch::ones({width}))), epsilon_(epsilon) {}

  Tensor forward(const Tensor& x) {
    return x * torch::rsqrt(x.square().mean(-1, /*keepdim=*/true) + epsilon_) * weight_;
  }

 private:
  Tensor weight_;
  const double epsilon_;
};
TORCH_MODULE(RmsNorm);

/// Turns pairs of elements by angles that grow with the position.
class Rotary {
 public:
  Rotary(int64_t head, double theta) : head_(head), theta_(theta) {}

  /// @param x  [B, heads, T, D]
  Tensor operator()(const Tensor& x) const {
    const auto options = x.options().dtype(torch::kDouble).requires_grad(false);
    const Tensor frequencies = torch::pow(theta_, -torch::arange(0, head_, 2, options) / head_);
    const Tensor angles = torch::outer(torch::arange(x.size(2), options), frequencies);
    const Tensor both = torch::cat({angles, angles}, -1).to(x.dtype());
    const auto halves = x.chunk(2, -1);
    return x * both.cos() + torch::cat({-halves[1], halves[0]}, -1) * both.sin();
  }

 private:
  const int64_t head_;
  const double theta_;
};

nn::Linear projection(int64_t inputs, int64_t outputs) {
  return nn::Linear(nn::LinearOptions(inputs, outputs).bias(false));
}

/// Causal attention, of which several heads of queries share one of keys and values.
class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const Settings& settings)
      : heads_(settings.heads),
        kv_heads_(settings.kv_heads),
        head_(settings.width / settings.heads),
        rotary_(head_, settings.theta),
        q_proj_(register_module("q_proj", projection(settings.width, heads_ * head_))),
        k_proj_(register_module("k_proj", projection(settings.width, kv_heads_ * head_))),
        v_proj_(register_module("v_proj", projection(settings.width, kv_heads_ * head_))),
        o_proj_(register_module("o_proj", projection(heads_ * head_, settings.width))) {}

  Tensor forward(const Tensor& x) {
    const Tensor q = rotary_(heads_of(q_proj_(x), heads_));
    const Tensor k = for_queries(rotary_(heads_of(k_proj_(x), kv_heads_)));
    const Tensor v = for_queries(heads_of(v_proj_(x), kv_heads_));
    const Tensor scores = q.matmul(k.transpose(-1, -2)) / std::sqrt(static_cast<double>(head_));
    const Tensor later = torch::ones({x.size(1), x.size(1)}, torch::kBool).triu(1);
    const Tensor mixed = scores.masked_fill(later, -INFINITY).softmax(-1).matmul(v);
    return o_proj_(mixed.transpose(1, 2).flatten(2));
  }

 private:
  /// [B, T, count * D] -> [B, count, T, D]
  Tensor heads_of(const Tensor& x, int64_t count) const {
    return x.unflatten(-1, {count, head_}).transpose(1, 2);
  }
  Tensor for_queries(const Tensor& x) const { return x.repeat_interleave(heads_ / kv_heads_, 1); }

  const int64_t heads_, kv_heads_, head_;
  const Rotary rotary_;
  nn::Linear q_proj_, k_proj_, v_proj_, o_proj_;
};
TORCH_MODULE(Attention);

class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(const Settings& settings)
      : gate_proj_(register_module("gate_proj", projection(settings.width, settings.inner))),
        up_proj_(register_module("up_proj", projection(settings.width, settings.inner))),
        down_proj_(register_module("down_proj", projection(settings.inner, settings.width))) {}

  Tensor forward(const Tensor& x) { return down_proj_(torch::silu(gate_proj_(x)) * up_proj_(x)); }

 private:
  nn::Linear gate_proj_, up_proj_, down_proj_;
};
TORCH_MODULE(Mlp);

class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const Settings& settings)
      : input_norm_(register_module("input_norm", RmsNorm(settings.width, settings.epsilon))),
        mlp_norm_(register_module("mlp_norm", RmsNorm(settings.width, settings.epsilon))),
        attention_(register_module("attention", Attention(settings))),
        mlp_(register_module("mlp", Mlp(settings))) {}

  Tensor forward(const Tensor& x) {
    const Tensor attended = x + attention_(input_norm_(x));
    return attended + mlp_(mlp_norm_(attended));
  }

 private:
  RmsNorm input_norm_, mlp_norm_;
  Attention attention_;
  Mlp mlp_;
};
TORCH_MODULE(Block);

class LlamaImpl : public torch::nn::Module {
 public:
  explicit LlamaImpl(const Settings& settings)
      : embedding_(register_module("embedding", nn::Embedding(kTokens, settings.width))),
        norm_(register_module("norm", RmsNorm(settings.width, settings.epsilon))),
        head_(register_module("head", projection(settings.width, kTokens))) {
    for (int64_t i = 0; i < settings.layers; ++i) {
      blocks_.push_back(register_module("block" + std::to_string(i), Block(settings)));
    }
    draw(settings.layers);
  }

  /// Returns scores [B, T, kTokens] of what follows each token of [B, T].
  Tensor forward(const Tensor& tokens) {
    Tensor x = embedding_(tokens);
    for (auto& block : blocks_) x = block(x);
    return head_(norm_(x));
  }

 private:
  /// Normal values, narrower where a branch ends.
  void draw(int64_t layers) {
    const torch::NoGradGuard no_grad;
    for (auto& item : named_parameters()) {
      const auto& name = item.key();
      if (name.find("norm") != std::string::npos) continue;
      const bool ends = name.find("o_proj") != name.npos || name.find("down_proj") != name.npos;
      item.value().normal_(0, ends ? 0.02 / std::sqrt(2.0 * layers) : 0.02);
    }
  }

  nn::Embedding embedding_;
  std::vector<Block> blocks_;
  RmsNorm norm_;
  nn::Linear head_;
};
TORCH_MODULE(Llama);

Tensor loss_of(const Tensor& scores, const Tensor& next) {
  return torch::nn::functional::cross_entropy(scores.flatten(0, 1), next.flatten());
}

// ---- training ----------------------------------------------------------------------------------

/// Grows to 1 in the first steps, and falls along a cosine to the floor in the last.
double share_of_rate(const Settings& settings, int64_t step) {
  if (step <= settings.warm_up) return static_cast<double>(step) / settings.warm_up;
  const double done =
      static_cast<double>(step - settings.warm_up) / (settings.steps - settings.warm_up);
  return settings.floor + (1 - settings.floor) * (1 + std::cos(M_PI * done)) / 2;
}

int main(int argc, char** argv) {
  const Settings settings = settings_of(argc, argv);
  if (settings.dtype == "double") torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  const Text text(settings.text, settings.context);
  torch::manual_seed(1);
  Llama net(settings);
  const auto options = torch::optim::AdamWOptions(settings.rate).weight_decay(settings.decay);
  torch::optim::AdamW optimizer(net->parameters(), options);

  auto run = [&](const Tensor& tokens) {
    const Tensor scores = net(tokens.narrow(1, 0, settings.context));
    Tensor loss = loss_of(scores, tokens.narrow(1, 1, settings.context));
    if (loss.requires_grad()) loss.backward();
    return loss;
  };

  for (int step = 1; step <= settings.steps; ++step) {
    const Tensor batch = text.batch(step, settings.rows);
    for (auto& group : optimizer.param_groups()) {
      group.options().set_lr(settings.rate * share_of_rate(settings, step));
    }
    optimizer.zero_grad();
    run(batch);
    torch::nn::utils::clip_grad_norm_(net->parameters(), settings.clip);
    optimizer.step();
    if (step % settings.report != 0) continue;
    const torch::NoGradGuard no_grad;
    const auto loss = run(text.held_out(settings.rows));
    std::printf("%4d  %.8f\n", step, loss.item<double>());
  }
}
