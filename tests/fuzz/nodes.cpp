// fuzz/nodes.cpp: the interpreter, and how models are built.
#include "fuzz/nodes.h"

#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <stdexcept>
#include <utility>

namespace smp::fuzz {

int reference_microbatch = -1;
double reference_weight = 1;

namespace {

int running_microbatch() { return is_initialized() ? current_microbatch() : reference_microbatch; }

/// The gradient of a number, which may be differentiated again; undefined if it does not depend.
Tensor differentiate(const Tensor& of, const Tensor& by) {
  if (is_initialized()) return smp::grad({of}, {by}, {}, true, true, /*allow_unused=*/true)[0];
  return torch::autograd::grad({of}, {by}, {}, true, true, /*allow_unused=*/true)[0];
}

double running_weight() { return is_initialized() ? microbatch_weight() : reference_weight; }

/// Of what kAddGradient adds.
Tensor added_gradient(const Tensor& weight, double factor) {
  return 3 * factor * running_weight() * weight.detach().square();
}

/// The identity of a, which gives weight a gradient.
struct AddGradient : torch::autograd::Function<AddGradient> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& a,
                        const Tensor& weight, double factor) {
    context->saved_data["factor"] = factor;
    context->save_for_backward({weight});
    return a.clone();
  }
  static Values backward(torch::autograd::AutogradContext* context, Values gradients) {
    const auto weight = context->get_saved_variables()[0];
    return {gradients[0], added_gradient(weight, context->saved_data["factor"].toDouble()),
            Tensor()};
  }
};

const std::string kThrown = "thrown by node ";

/// One call of a node's forward.
class Interpreter {
 public:
  Interpreter(NodeImpl& node, const Tensor& x, const Tensor& y, const Tensor& tokens)
      : node_(node), tokens_(tokens) {
    registers_.fill(x);
    if (y.defined()) registers_[1] = y;
  }

  void run(const Code& code) {
    for (const auto& instruction : code) run(instruction);
  }
  Tensor& reg(int number) { return registers_[static_cast<std::size_t>(number)]; }

 private:
  NodeImpl& other(const Instruction& i) const { return *node_.model->unit(i.which).node; }

  void run(const Instruction& i) {
    switch (i.op) {
      case Op::kUnary:
        reg(i.to) = unary(i);
        break;
      case Op::kBinary:
        reg(i.to) = binary(i);
        break;
      case Op::kFreshInPlace:
        reg(i.to) = reg(i.a).clone();
        in_place(i);
        break;
      case Op::kInPlace:
        in_place(i);
        break;
      case Op::kView:
        reg(i.to) = view(i);
        break;
      case Op::kWeight:
        reg(i.to) = reg(i.a).matmul(node_.weight);
        break;
      case Op::kTokens:
        reg(i.to) = reg(i.a) + 0.1 * tokens_.to(torch::kDouble).unsqueeze(1);
        break;
      case Op::kCall:
        call(i);
        break;
      case Op::kSlope:
        slope(i);
        break;
      case Op::kDetach:
        reg(i.to) = reg(i.a).detach();
        break;
      case Op::kHook:
        hook(i);
        break;
      default:
        run_control(i);
    }
  }

  void run_control(const Instruction& i) {
    switch (i.op) {
      case Op::kIfData:
        run(sum(i.a) > i.value ? i.inner : i.other);
        break;
      case Op::kIfMicrobatch:
        run(running_microbatch() % 2 == 1 ? i.inner : i.other);
        break;
      case Op::kIfWeight:
        run(other(i).weight.norm().item<double>() > i.value ? i.inner : i.other);
        break;
      case Op::kLoop:
        for (auto left = 1 + tokens_.sum().item<std::int64_t>() % 3; left > 0; --left) run(i.inner);
        break;
      case Op::kNoGrad: {
        const at::NoGradGuard no_grad;
        run(i.inner);
        break;
      }
      case Op::kThrow:
        if (sum(i.a) > i.value) {
          throw std::runtime_error(kThrown + std::to_string(node_.number));
        }
        break;
      case Op::kTry:
        try {
          run(i.inner);
          smp::wait();
        } catch (const std::exception& error) {
          if (!thrown_by_node(error)) throw;
          forget_other_errors();
          run(i.other);
        }
        break;
      default:
        run_on_named(i);
    }
  }

  /// Uses the state of the module that the instruction names.
  void run_on_named(const Instruction& i) {
    switch (i.op) {
      case Op::kReadWeight:
        reg(i.to) = reg(i.a) * other(i).weight.mean();
        break;
      case Op::kReadWeightValue:
        reg(i.to) = reg(i.a) + other(i).weight.detach().mean();
        break;
      case Op::kReadTable:
        reg(i.to) = reg(i.a) + other(i).table;
        break;
      case Op::kReadCount:
        reg(i.to) = reg(i.a) * (1 + 0.01 * other(i).count.item<std::int64_t>());
        break;
      case Op::kReadAverage:
        reg(i.to) = reg(i.a) + other(i).average;
        break;
      case Op::kReadScratch:
        reg(i.to) = reg(i.a);
        if (other(i).scratch.defined()) reg(i.to) = reg(i.a) + other(i).scratch.mean(0);
        break;
      case Op::kReadCounter:
        reg(i.to) = reg(i.a) * (1 + 0.01 * other(i).counter);
        break;
      case Op::kReadAuxiliary:
        reg(i.to) = reg(i.a);
        if (other(i).auxiliary.defined()) reg(i.to) = reg(i.a) + 0.1 * other(i).auxiliary;
        break;
      case Op::kToggle:
        node_.model->unit(i.which).module->train(i.value > 0);
        break;
      case Op::kFreeze:
        other(i).weight.requires_grad_(i.value > 0);
        break;
      default:
        run_on_own(i);
    }
  }

  /// Uses the state of the node itself.
  void run_on_own(const Instruction& i) {
    switch (i.op) {
      case Op::kCountBuffer:
        node_.count.add_(1);
        break;
      case Op::kUpdateAverage: {
        const at::NoGradGuard no_grad;
        node_.average.mul_(0.9).add_(reg(i.a).mean(0), 0.1);
        break;
      }
      case Op::kReturnBuffer:
        reg(i.to) = node_.average.expand_as(reg(i.a));
        break;
      case Op::kWriteScratch:
        node_.scratch = i.which == 0 ? reg(i.a).detach() : reg(i.a);
        break;
      case Op::kCountMember:
        ++node_.counter;
        break;
      case Op::kKeep:
        node_.kept.push_back(reg(i.a));
        break;
      case Op::kTakeKept:
        take_kept(i);
        break;
      case Op::kWriteAuxiliary:
        node_.auxiliary = reg(i.a).pow(2).mean();
        break;
      case Op::kAddGradient:
        reg(i.to) = add_gradient(i);
        break;
      default:
        throw std::logic_error("no such operation");
    }
  }

  double sum(int number) { return reg(number).sum().item<double>(); }

  Tensor unary(const Instruction& i) {
    const Tensor& a = reg(i.a);
    switch (i.which) {
      case 0:
        return a.tanh();
      case 1:
        return a.sigmoid();
      case 2:
        return a * i.value;
      case 3:
        return a + i.value;
      case 4:
        return a.relu();
      case 5:
        return a.clone();
      default:
        return a.softmax(1);
    }
  }

  Tensor binary(const Instruction& i) {
    if (i.which == 0) return reg(i.a) + reg(i.b);
    return i.which == 1 ? reg(i.a) * reg(i.b) : reg(i.a) - reg(i.b);
  }

  Tensor view(const Instruction& i) {
    const Tensor& a = reg(i.a);
    if (i.which == 0) return a.view_as(a);
    return i.which == 1 ? a.narrow(0, 0, a.size(0)) : a.t().t();
  }

  void in_place(const Instruction& i) {
    Tensor& to = reg(i.to);
    if (i.which == 0) {
      to.mul_(i.value);
    } else if (i.which == 1) {
      to.add_(reg(i.a));
    } else {
      to.narrow(1, 0, 2).add_(i.value);
    }
  }

  void call(const Instruction& i) {
    const auto results =
        node_.model->unit(i.which).call(reg(i.a), i.b < 0 ? Tensor() : reg(i.b), tokens_);
    if (i.also >= 0 && results.size() > 1) reg(i.also) = results[1];
    reg(i.to) = results.at(0);
  }

  void slope(const Instruction& i) {
    const auto by = reg(i.a) * 1;
    auto result = node_.model->unit(i.which).call(by, Tensor(), tokens_).at(0);
    if (by.requires_grad() && result.requires_grad()) {
      const auto gradient = differentiate(result.square().sum(), by);
      if (gradient.defined()) result = result + i.value * gradient;
    }
    reg(i.to) = result;
  }

  /// Of calls that one process would not have made.
  static void forget_other_errors() {
    try {
      smp::wait();
    } catch (const std::exception& error) {
      if (!thrown_by_node(error)) throw;
    }
  }

  void hook(const Instruction& i) {
    if (i.which == 0) reg(i.a) = reg(i.a) * 1;
    if (!reg(i.a).requires_grad()) return;
    reg(i.a).register_hook(
        [factor = i.value](const Tensor& gradient) { return gradient * factor; });
  }

  Tensor add_gradient(const Instruction& i) {
    const auto& weight = node_.weight;
    if (i.which == kByFunction) return AddGradient::apply(reg(i.a), weight, i.value);
    if (!weight.requires_grad() || !at::GradMode::is_enabled()) return reg(i.a).clone();
    if (i.which == kByOwnBackward) {
      (i.value * running_weight() * weight.pow(3).sum()).backward();
      return reg(i.a).clone();
    }
    const auto own = weight * 1;
    own.register_hook([weight = weight.detach(), factor = i.value](const Tensor& gradient) {
      return gradient + added_gradient(weight, factor);
    });
    return reg(i.a) + 0.1 * own.mean();
  }

  void take_kept(const Instruction& i) {
    reg(i.to) = reg(i.a);
    for (const auto& tensor : node_.kept) reg(i.to) = reg(i.to) + tensor.mean(0);
    node_.kept.clear();
  }

  NodeImpl& node_;
  const Tensor& tokens_;
  std::array<Tensor, kRegisters> registers_;
};

}  // namespace

bool thrown_by_node(const std::exception& error) {
  return std::string(error.what()).find(kThrown) != std::string::npos;
}

NodeImpl::NodeImpl(const Model& whole, int number_)
    : weight(register_parameter("weight", torch::empty({kWidth, kWidth}))),
      table(register_buffer("table", torch::empty({kWidth}))),
      count(register_buffer("count", torch::empty({1}, torch::kLong))),
      average(register_buffer("average", torch::empty({kWidth}))),
      model(&whole),
      number(number_) {}

Values NodeImpl::forward(const Tensor& x, const Tensor& y, const Tensor& tokens) {
  const auto& description = model->program().modules[static_cast<std::size_t>(number)];
  Interpreter interpreter(*this, x, y, tokens);
  interpreter.run(description.code);
  Values result;
  for (const int output : description.outputs) result.push_back(interpreter.reg(output));
  return result;
}

std::array<Tensor, 3> FixedNodeImpl::fixed(const Tensor& x, const Tensor& y, const Tensor& tokens) {
  auto values = NodeImpl::forward(x, y, tokens);
  while (values.size() < 3) values.push_back(torch::empty({0}));
  return {values[0], values[1], values[2]};
}

namespace {
SMP_MODULE(FixedNode, fixed);
}  // namespace

Model::Model(const Program& program, bool routed, std::uint64_t seed)
    : program_(program), routed_(routed) {
  for (std::size_t i = 0; i < program.modules.size(); ++i) {
    add(program.modules[i], static_cast<int>(i));
  }
  adopt();
  draw_values(seed);
}

void Model::add(const Module& module, int number) {
  if (module.kind == Kind::kNode) {
    add_node(module, number);
  } else if (routed_ && module.routed) {
    add_leaf<true>(module.kind);
  } else {
    add_leaf<false>(module.kind);
  }
}

void Model::add_node(const Module& module, int number) {
  std::shared_ptr<NodeImpl> node;
  if (routed_ && module.routed && number % 3 != 0) {
    FixedNode fixed(*this, number);
    const auto outputs = module.outputs.size();
    units_.push_back(
        {fixed.ptr(),
         [fixed = fixed.get(), outputs](const Tensor& x, const Tensor& y,
                                        const Tensor& tokens) -> Values {
           const auto values = fixed->fixed(x, y, tokens);
           return {values.begin(), values.begin() + static_cast<std::ptrdiff_t>(outputs)};
         },
         fixed.get()});
    return;
  }
  if (routed_ && module.routed) {
    node = make_module<NodeImpl>(*this, number);
  } else {
    node = std::make_shared<NodeImpl>(*this, number);
  }
  if (number == 0) root_ = node;
  units_.push_back({node,
                    [node = node.get()](const Tensor& x, const Tensor& y, const Tensor& tokens) {
                      return node->forward(x, y, tokens);
                    },
                    node.get()});
}

template <class Holder, class Options>
void Model::add_layer(const Options& options) {
  Holder layer(options);
  units_.push_back(
      {layer.ptr(), [layer = layer.get()](const Tensor& x, const Tensor&, const Tensor&) -> Values {
         return {layer->forward(x)};
       }});
}

template <bool Routed>
void Model::add_leaf(Kind kind) {
  using Linear = std::conditional_t<Routed, nn::Linear, torch::nn::Linear>;
  using LayerNorm = std::conditional_t<Routed, nn::LayerNorm, torch::nn::LayerNorm>;
  using BatchNorm = std::conditional_t<Routed, nn::BatchNorm1d, torch::nn::BatchNorm1d>;
  using Embedding = std::conditional_t<Routed, nn::Embedding, torch::nn::Embedding>;
  using Dropout = std::conditional_t<Routed, nn::Dropout, torch::nn::Dropout>;
  using Sequential = std::conditional_t<Routed, nn::Sequential, torch::nn::Sequential>;
  using Tanh = std::conditional_t<Routed, nn::Tanh, torch::nn::Tanh>;
  using Gru = std::conditional_t<Routed, nn::GRUCell, torch::nn::GRUCell>;
  const torch::nn::LinearOptions square(kWidth, kWidth);
  switch (kind) {
    case Kind::kLinear:
      return add_layer<Linear>(square);
    case Kind::kLayerNorm:
      return add_layer<LayerNorm>(torch::nn::LayerNormOptions({kWidth}));
    case Kind::kBatchNorm:
      return add_layer<BatchNorm>(torch::nn::BatchNormOptions(kWidth));
    case Kind::kDropout:
      return add_layer<Dropout>(torch::nn::DropoutOptions(0));
    case Kind::kEmbedding: {
      Embedding layer(torch::nn::EmbeddingOptions(kTokens, kWidth));
      units_.push_back(
          {layer.ptr(),
           [layer = layer.get()](const Tensor& x, const Tensor&, const Tensor& tokens) -> Values {
             return {x + layer->forward(tokens)};
           }});
      return;
    }
    case Kind::kSequential: {
      Linear first(square), last(square);
      Tanh middle;
      Sequential layer(first, middle, last);
      units_.push_back(
          {layer.ptr(),
           [layer = layer.get()](const Tensor& x, const Tensor&, const Tensor&) -> Values {
             return {layer->forward(x)};
           }});
      return;
    }
    default: {
      Gru layer(torch::nn::GRUCellOptions(kWidth, kWidth));
      units_.push_back(
          {layer.ptr(),
           [layer = layer.get()](const Tensor& x, const Tensor& y, const Tensor&) -> Values {
             return {layer->forward(x, y.defined() ? y : x)};
           }});
    }
  }
}

void Model::adopt() {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    for (const int child : program_.modules[i].children) {
      const auto& path = program_.modules[static_cast<std::size_t>(child)].path;
      units_[i].node->register_module(path.substr(path.rfind('.') + 1), unit(child).module);
    }
  }
}

void Model::draw_values(std::uint64_t seed) {
  const at::NoGradGuard no_grad;
  auto generator = at::detail::createCPUGenerator(seed);
  for (const auto& parameter : root_->named_parameters()) {
    parameter.value().copy_(torch::randn(parameter.value().sizes(), generator) * 0.5);
  }
  for (const auto& unit : units_) {
    if (unit.node == nullptr) continue;
    unit.node->table.copy_(torch::randn({kWidth}, generator) * 0.5);
    unit.node->average.zero_();
    unit.node->count.zero_();
  }
}

}  // namespace smp::fuzz
