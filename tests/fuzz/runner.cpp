// fuzz/runner.cpp: two trainings of one description (docs/design.md, Equal to one process).
#include "fuzz/runner.h"

#include <c10/core/DefaultDtype.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "api/rank/rank.h"
#include "checkpoint/module_tensors.h"
#include "fuzz/between.h"
#include "fuzz/nodes.h"
#include "fuzz/optimizers.h"
#include "fuzz/row_lists.h"
#include "server/recompute/ahead.h"
#include "smp/checkpoint.h"
#include "smp/smp.h"

namespace smp::fuzz {
namespace {

struct Batch {
  Tensor x, tokens;
  RowLists lists;
};

/// The same on all ranks. Step -1 is the evaluation.
Batch batch_of(const Program& program, int step) {
  auto generator =
      at::detail::createCPUGenerator(program.seed * 100 + static_cast<unsigned>(step + 1));
  auto x = torch::randn({program.rows, kWidth}, generator);
  auto tokens = torch::randint(kTokens, {program.rows}, generator, torch::kLong);
  return {std::move(x), std::move(tokens), row_lists(program, step)};
}

std::uint64_t model_seed(const Program& program, int model) {
  return program.seed * 10 + static_cast<unsigned>(model);
}

/// Loads values into a model that has not run, uses the dict for something else, and writes.
void load_and_write(const Program& program, int model, torch::nn::Module& module,
                    const Load& load) {
  if (!program.loads) return;
  const at::NoGradGuard no_grad;
  auto generator = at::detail::createCPUGenerator(model_seed(program, model) + 1);
  const auto tensors = checkpoints::tensors_of(module);
  StateDict dict;
  for (const auto& [tensor, names] : tensors) {
    auto values = torch::rand(tensor.sizes(), generator, torch::kDouble);
    if (tensor.requires_grad()) values -= .5;
    if (!tensor.is_floating_point()) values *= 8;
    dict.insert(names[0], values.to(tensor.scalar_type()));
  }
  load(dict, /*strict=*/true);
  for (const auto& [name, values] : dict) Tensor(values).zero_();
  for (const auto& named : tensors) {
    if (named.tensor.requires_grad()) Tensor(named.tensor).mul_(.7);
  }
}

using Call =
    std::function<Values(int model, const Tensor& x, const Tensor& y, const Tensor& tokens)>;
using Part = std::function<Values(int model, const Tensor& x, const Tensor& tokens)>;
using LossOf = std::function<Tensor(const Values& outputs, int number)>;
using Backward = std::function<void(const std::vector<Tensor>& losses,
                                    const std::vector<Tensor>& gradients, bool retain_graph)>;

/// The gradient of a number, which may be differentiated again; undefined if it does not depend.
using Differentiate = std::function<Tensor(const Tensor& of, const Tensor& by)>;

/// What the body does, for both.
struct Machine {
  Call call;
  Part part;
  LossOf loss;
  Backward backward;
  Differentiate differentiate;
};

Tensor loss_of(const Values& outputs, int number) {
  auto loss = outputs[static_cast<std::size_t>(number) % outputs.size()].pow(2).mean();
  for (const auto& output : outputs) loss = loss + (number + 1) * 0.5 * output.sin().mean();
  return loss;
}

/// On a rank of its own.
struct LossImpl : torch::nn::Module {
  LossImpl() : scale(register_parameter("scale", torch::full({1}, 0.7, torch::kDouble))) {}
  Tensor forward(const Values& outputs, std::int64_t number) {
    return loss_of(outputs, static_cast<int>(number)) * scale.mean();
  }
  Tensor scale;
};
SMP_MODULE(Loss);
/// A model runs on stage 0 itself.
struct LossModelImpl : torch::nn::Module {
  Tensor forward(const Values& outputs, std::int64_t number) { return loss(outputs, number); }
  Loss loss{register_module("loss", Loss())};
};
SMP_MODULE(LossModel);

void note_scale(int step, const Tensor& scale, Trace& trace) {
  const auto& gradient = scale.grad();
  trace.values["step " + std::to_string(step) + " gradient of the loss"] =
      gradient.defined() ? gradient.clone() : Tensor();
}

/// @param replicas  that run on the same samples: each has an equal part of the gradient
void note_argument(int step, const Batch& batch, int replicas, Trace& trace) {
  if (!batch.x.requires_grad()) return;
  const auto& gradient = batch.x.grad();
  trace.values["step " + std::to_string(step) + " gradient of the argument"] =
      gradient.defined() ? gradient * replicas : Tensor();
}

Values call_models(const Program& program, int step, const Machine& machine, const Batch& batch) {
  const auto& body = program.body;
  Values outputs;
  try {
    outputs = machine.call(0, batch.x, {}, batch.tokens);
    if (body.catches) smp::wait();
  } catch (const std::exception& error) {
    if (!body.catches || !thrown_by_node(error)) throw;
    outputs = {batch.x};
  }
  if (body.models == 2 && (body.second_from == 0 || step >= body.second_from)) {
    const auto more = machine.call(1, body.chained ? outputs[0] : batch.x, batch.x, batch.tokens);
    outputs.insert(outputs.end(), more.begin(), more.end());
  }
  if (body.calls_part) {
    const auto more = machine.part(0, batch.x, batch.tokens);
    outputs.insert(outputs.end(), more.begin(), more.end());
  }
  return outputs;
}

void run_backward(const Body& body, const Machine& machine, const Values& outputs,
                  const std::vector<Tensor>& losses) {
  if (body.gradient && outputs[0].requires_grad()) {
    machine.backward({outputs[0] * 1}, {torch::full_like(outputs[0], 0.1)}, true);
  }
  if (body.as_list) {
    machine.backward(losses, {}, false);
  } else {
    for (std::size_t i = 0; i < losses.size(); ++i) {
      machine.backward({losses[i]}, {}, i + 1 < losses.size());
    }
  }
}

/// Returns the loss and penalties of its derivatives by `shift`, which was added to the input.
Tensor penalised(const Body& body, const Machine& machine, Tensor loss, const Tensor& shift) {
  auto of = loss;
  for (int i = 0; i < body.penalties && of.requires_grad(); ++i) {
    const auto gradient = machine.differentiate(of, shift);
    if (!gradient.defined() || !gradient.requires_grad()) break;
    of = gradient.square().sum();
    loss = loss + of * 0.01;
  }
  return loss;
}

/// Returns the sum of all losses.
Tensor run_body(const Program& program, int step, const Machine& machine, const Batch& given) {
  const auto& body = program.body;
  const bool training = step >= 0;
  Batch batch{with_lists(given.x, given.lists), given.tokens, {}};
  const bool penalises = training && body.penalties > 0;
  const auto shift = torch::zeros_like(batch.x.detach()).requires_grad_(penalises);
  if (penalises) batch.x = batch.x + shift;
  const auto outputs = call_models(program, step, machine, batch);
  std::vector<Tensor> losses;
  for (int i = 0; i < body.backwards; ++i) losses.push_back(machine.loss(outputs, i));
  if (penalises) losses[0] = penalised(body, machine, losses[0], shift);
  // A promise has no value yet, and shall not need one before its backward.
  if (training && losses[0].requires_grad()) run_backward(body, machine, outputs, losses);
  auto total = losses[0].detach();
  for (std::size_t i = 1; i < losses.size(); ++i) total = total + losses[i].detach();
  return total;
}

// ---- plain LibTorch ----------------------------------------------------------------------------

class Reference {
 public:
  explicit Reference(const Program& program) : program_(program) {
    for (int i = 0; i < program.body.models; ++i) {
      models_.push_back(std::make_unique<Model>(program, false, model_seed(program, i)));
      auto& root = *models_.back()->root();
      load_and_write(program, i, root, [&](const StateDict& dict, bool strict) {
        load_state_dict(root, dict, strict);
      });
      optimizers_.push_back(
          make_optimizer(program, models_.back()->root()->parameters(), first_groups(program)));
    }
  }

  Trace run() {
    Trace trace;
    for (int step = program_.evaluates ? -1 : 0; step < program_.steps; ++step) {
      try {
        run_step(step, trace);
      } catch (const std::exception& error) {
        trace.error = error.what();
        trace.failed_at = step;
        return trace;
      }
    }
    finals(trace);
    return trace;
  }

 private:
  void run_step(int step, Trace& trace) {
    const bool training = step >= 0;
    for (auto& model : models_) model->root()->train(training);
    for (auto& model : models_) model->root()->zero_grad();
    loss_.zero_grad();
    std::optional<at::NoGradGuard> no_grad;
    if (!training) no_grad.emplace();
    const auto batch = batch_of(program_, step);
    if (training) batch.x.requires_grad_(program_.body.argument_gradients);
    const auto x = batch.x.tensor_split(program_.microbatches, 0);
    const auto tokens = batch.tokens.tensor_split(program_.microbatches, 0);
    Tensor mean = torch::zeros({});
    Tensor buffer = torch::zeros({kWidth});
    std::int64_t row = 0;
    for (int m = 0; m < program_.microbatches; ++m) {
      reference_microbatch = m;
      const auto index = static_cast<std::size_t>(m);
      weight_ = static_cast<double>(x[index].size(0)) / program_.rows;
      reference_weight = weight_;
      // Microbatches of a step have no history in common, as views of one tensor would.
      const auto rows = x[index].size(0);
      const Batch own{x[index].clone(), tokens[index], part_of(batch.lists, row, rows)};
      row += rows;
      mean += weight_ * run_body(program_, step, machine(), own);
      buffer += weight_ * models_[0]->root()->average;
    }
    note(step, mean, buffer, trace);
    if (!training) return;
    note_argument(step, batch, 1, trace);
    for (auto& optimizer : optimizers_) optimizer->step();
    if (step == 0 && program_.joins) join();
  }

  void join() {
    for (std::size_t i = 0; i < models_.size(); ++i) {
      optimizers_[i]->add_param_group(group_of(program_, models_[i]->root()->parameters(), 1));
    }
  }

  Machine machine() {
    return {[this](int model, const Tensor& x, const Tensor& y, const Tensor& tokens) {
              return models_[static_cast<std::size_t>(model)]->root()->forward(x, y, tokens);
            },
            [this](int model, const Tensor& x, const Tensor& tokens) {
              return models_[static_cast<std::size_t>(model)]->unit(1).call(x, {}, tokens);
            },
            [this](const Values& outputs, int number) {
              return program_.body.loss_rank < 0 ? loss_of(outputs, number)
                                                 : loss_.forward(outputs, number);
            },
            [this](const std::vector<Tensor>& losses, const std::vector<Tensor>& gradients,
                   bool retain_graph) {
              std::vector<Tensor> scaled;
              for (const auto& loss : losses) scaled.push_back(loss * weight_);
              torch::autograd::backward(scaled, gradients, retain_graph);
            },
            [](const Tensor& of, const Tensor& by) {
              return torch::autograd::grad({of}, {by}, {}, true, true, /*allow_unused=*/true)[0];
            }};
  }

  void note(int step, const Tensor& loss, const Tensor& buffer, Trace& trace) const {
    const auto prefix = "step " + std::to_string(step) + " ";
    trace.values[prefix + "loss"] = loss;
    if (program_.body.returns_buffer) trace.values[prefix + "buffer output"] = buffer;
    if (step < 0) return;
    if (program_.body.loss_rank >= 0) note_scale(step, loss_.scale, trace);
    for (std::size_t i = 0; i < models_.size(); ++i) {
      for (const auto& item : models_[i]->root()->named_parameters()) {
        const auto& gradient = item.value().grad();
        trace.values[prefix + "gradient of " + std::to_string(i) + "." + item.key()] =
            gradient.defined() ? gradient.clone() : Tensor();
      }
    }
  }

  void finals(Trace& trace) const {
    for (std::size_t i = 0; i < models_.size(); ++i) {
      const auto prefix = "final " + std::to_string(i) + ".";
      for (const auto& item : models_[i]->root()->named_parameters()) {
        trace.values[prefix + item.key()] = item.value();
      }
      for (const auto& item : models_[i]->root()->named_buffers()) {
        trace.values[prefix + item.key()] = item.value();
      }
    }
  }

  const Program& program_;
  std::vector<std::unique_ptr<Model>> models_;
  LossImpl loss_;
  std::vector<OptimizerPtr> optimizers_;
  double weight_ = 1;
};

// ---- this library, one rank --------------------------------------------------------------------

constexpr std::int64_t kNoLimit = std::int64_t{1} << 40;

class Rank {
 public:
  explicit Rank(const Program& program) : program_(program) {}

  Trace run() {
    int step = kPlacing;
    const auto& ahead = *server::RecomputeAhead::of(rank());
    const auto before = ahead.computed();
    try {
      build();
      for (step = program_.evaluates ? -1 : 0; step < program_.steps; ++step) run_step(step);
      finals();
    } catch (const std::exception& error) {
      trace_.error = error.what();
      trace_.failed_at = step;
      check_session();
    }
    trace_.ahead = static_cast<int>(ahead.computed() - before);
    trace_.replayed = static_cast<int>(smp::Rank::current().server().core().counters.replayed);
    return std::move(trace_);
  }

 private:
  using Distributed = DistributedModel<std::shared_ptr<NodeImpl>>;

  void build() {
    for (int i = 0; i < program_.body.models; ++i) {
      std::optional<delay_param_initialization> delay;
      if (program_.delayed) delay.emplace();
      models_.push_back(std::make_unique<Model>(program_, true, model_seed(program_, i)));
      delay.reset();
      for (std::size_t m = 0; m < program_.modules.size(); ++m) {
        if (!program_.modules[m].checkpointed) continue;
        set_activation_checkpointing(*models_.back()->unit(static_cast<int>(m)).module);
      }
      wrapped_.push_back(std::make_unique<Distributed>(models_.back()->root()));
      for (const auto& module : program_.modules) {
        if (module.pin >= 0) wrapped_.back()->set_partition(module.path, module.pin);
      }
      load_and_write(program_, i, *models_.back()->root(), [&](const StateDict& dict, bool strict) {
        wrapped_.back()->load_state_dict(dict, strict);
      });
      add_optimizer(i, first_groups(program_));
    }
    if (program_.body.loss_rank < 0) return;
    loss_.emplace(LossModel());
    loss_->set_partition("loss", program_.body.loss_rank);
  }

  void add_optimizer(int model, const std::vector<int>& groups) {
    auto& wrapped = *wrapped_[static_cast<std::size_t>(model)];
    optimizers_.push_back(std::make_unique<Optimizer>(
        wrapped, make_optimizer(program_, wrapped.parameters(), groups)));
  }

  /// After the first step.
  void change_optimizers() {
    for (std::size_t i = 0; i < wrapped_.size() && program_.joins; ++i) {
      (*optimizers_[i])->add_param_group(group_of(program_, wrapped_[i]->parameters(), 1));
    }
    if (!program_.reloads) return;
    std::vector<StateDict> saved;
    for (std::size_t i = 0; i < wrapped_.size(); ++i) {
      saved.push_back(optimizer_state_dict(*wrapped_[i], *optimizers_[i]));
    }
    optimizers_.clear();
    for (std::size_t i = 0; i < wrapped_.size(); ++i) {
      add_optimizer(static_cast<int>(i),
                    program_.groups ? std::vector<int>{1, 0} : std::vector<int>{0});
      load_optimizer_state_dict(*wrapped_[i], *optimizers_[i], saved[i]);
    }
  }

  void run_step(int step) {
    const bool training = step >= 0;
    step_ = step;
    for (auto& model : wrapped_) model->train(training);
    for (auto& model : wrapped_) model->zero_grad();
    if (loss_) loss_->zero_grad();
    std::optional<at::NoGradGuard> no_grad;
    if (!training) no_grad.emplace();
    const auto batch = batch_of(program_, step);
    if (training) batch.x.requires_grad_(program_.body.argument_gradients);
    auto [loss, buffer] = (training ? train_ : evaluate_)(batch.x, batch.tokens, batch.lists);
    note(step, loss.reduce_mean(), buffer.reduce_mean());
    if (!training) return;
    if (rank() == 0) note_argument(step, batch, program_.replicas, trace_);
    for (auto& optimizer : optimizers_) optimizer->step();
    if (step == 0) change_optimizers();
    const bool without_limit = program_.seed % 2 == 0;
    if (without_limit) server::RecomputeAhead::of(rank())->set_credit({true, kNoLimit});
  }

  std::tuple<Tensor, Tensor> body(const Batch& batch) {
    auto total = run_body(program_, step_, machine(), batch);
    const bool buffer = program_.body.returns_buffer;
    return {total, buffer ? models_[0]->root()->average : torch::zeros({kWidth})};
  }

  Machine machine() {
    return {[this](int model, const Tensor& x, const Tensor& y, const Tensor& tokens) {
              return (*wrapped_[static_cast<std::size_t>(model)])(x, y, tokens);
            },
            [this](int model, const Tensor& x, const Tensor& tokens) {
              return models_[static_cast<std::size_t>(model)]->unit(1).call(x, {}, tokens);
            },
            [this](const Values& outputs, int number) {
              return loss_ ? (*loss_)(outputs, std::int64_t{number}) : loss_of(outputs, number);
            },
            [this](const std::vector<Tensor>& losses, const std::vector<Tensor>& gradients,
                   bool retain_graph) {
              auto& model = *wrapped_[program_.body.backward_of_other ? 1 : 0];
              if (losses.size() == 1 && gradients.empty()) {
                model.backward(losses[0], {}, retain_graph);
              } else {
                model.backward(losses, gradients, retain_graph);
              }
            },
            [](const Tensor& of, const Tensor& by) {
              return smp::grad({of}, {by}, {}, true, true, /*allow_unused=*/true)[0];
            }};
  }

  void note(int step, const Tensor& loss, const Tensor& buffer) {
    const auto prefix = "step " + std::to_string(step) + " ";
    trace_.values[prefix + "loss"] = loss;
    if (program_.body.returns_buffer) trace_.values[prefix + "buffer output"] = buffer;
    if (step < 0) return;
    if (loss_ && pp_rank() == program_.body.loss_rank) {
      note_scale(step, loss_->local_parameters().at(0), trace_);
    }
    for (std::size_t i = 0; i < wrapped_.size(); ++i) {
      for (const auto& [name, parameter] : wrapped_[i]->local_named_parameters()) {
        const auto& gradient = parameter.grad();
        trace_.values[prefix + "gradient of " + std::to_string(i) + "." + name] =
            gradient.defined() ? gradient.clone() : Tensor();
      }
    }
  }

  void finals() {
    for (std::size_t i = 0; i < wrapped_.size(); ++i) {
      const auto prefix = "final " + std::to_string(i) + ".";
      for (const auto& [name, tensor] : wrapped_[i]->local_named_parameters()) {
        trace_.values[prefix + name] = tensor;
      }
      for (const auto& [name, tensor] : wrapped_[i]->local_named_buffers()) {
        trace_.values[prefix + name] = tensor;
      }
    }
  }

  /// After a failure ranks can still talk to each other.
  void check_session() {
    try {
      barrier();
    } catch (const std::exception& error) {
      trace_.aftermath = error.what();
    }
  }

  const Program& program_;
  Trace trace_;
  int step_ = 0;  // that runs
  std::vector<std::unique_ptr<Model>> models_;
  std::vector<std::unique_ptr<Distributed>> wrapped_;
  std::optional<DistributedModel<LossModel>> loss_;
  using Optimizer = DistributedOptimizer<torch::optim::Optimizer>;
  std::vector<std::unique_ptr<Optimizer>> optimizers_;
  using Function = std::function<std::tuple<Tensor, Tensor>(Tensor, Tensor, RowLists)>;
  Step<Function> train_ = smp::step(Function([this](Tensor x, Tensor tokens, RowLists lists) {
    return body({x, tokens, std::move(lists)});
  }));
  Step<Function> evaluate_ = smp::step(Function([this](Tensor x, Tensor tokens, RowLists lists) {
    return body({x, tokens, std::move(lists)});
  }));
};

}  // namespace

Trace run_reference(const Program& program) { return Reference(program).run(); }

std::vector<Trace> run_ranks(const Program& program) {
  Config config;
  config.pipeline_parallel_degree = program.ranks;
  config.microbatches = program.microbatches;
  config.pipeline = program.schedule;
  config.plan_cache = "off";
  config.promised_outputs = program.seed % 3 != 0 || program.fast_mode;
  config.static_mode = program.static_mode;
  config.fast_mode = program.fast_mode || !program.static_mode;
  config.skip_tracing = !program.trial;
  config.auto_partition = program.planner;
  if (!program.planner) config.default_partition = 0;
  const int ranks = program.ranks * program.replicas;
  std::vector<Trace> traces(static_cast<std::size_t>(ranks));
  LocalRun run;
  run.seed = program.seed;
  run.mean_delay = program.mean_delay;
  run_local(
      ranks, [&] { traces[static_cast<std::size_t>(rank())] = Rank(program).run(); }, config, run);
  return traces;
}

}  // namespace smp::fuzz
