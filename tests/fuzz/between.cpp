// fuzz/between.cpp: loads and writes.
#include "fuzz/between.h"

#include <ATen/CPUGeneratorImpl.h>

#include <exception>

#include "checkpoint/module_tensors.h"
#include "d2d/tensors/overlap.h"
#include "fuzz/acts.h"
#include "support/dice.h"

namespace smp::fuzz {
namespace between {
namespace {

using at::Tensor;
using checkpoints::NamedTensor;

enum Kind { kLoadAll, kLoadSome, kWrite, kKinds };

/// Values of `type` for `tensor`: they depend on nothing but the seed of `generator`.
Tensor values_for(const Tensor& tensor, at::ScalarType type, at::Generator& generator) {
  const auto as_double = at::TensorOptions(at::kDouble);
  if (d2d::overlaps(tensor)) return at::full(tensor.sizes(), 2, as_double).to(type);
  if (at::isComplexType(type)) {
    const auto complex = at::TensorOptions(at::kComplexDouble);
    return at::randn(tensor.sizes(), generator, complex).to(type);
  }
  if (at::isFloatingType(type)) {
    return at::randn(tensor.sizes(), generator, as_double).to(type);
  }
  return at::randint(2, tensor.sizes(), generator, as_double).to(type);
}

at::ScalarType type_in_dict(const Tensor& tensor, Dice& dice) {
  const bool other = tensor.is_floating_point() && dice.chance(.2);
  return other ? dice.one_of({at::kFloat, at::kDouble, at::kBFloat16}) : tensor.scalar_type();
}

StateDict draw_dict(const std::vector<NamedTensor>& tensors, bool all, Dice& dice) {
  auto generator = at::detail::createCPUGenerator(dice.next());
  StateDict dict;
  for (const auto& [tensor, names] : tensors) {
    if (!all && dice.chance(.5)) continue;
    const auto values = values_for(tensor, type_in_dict(tensor, dice), generator);
    const auto one = static_cast<std::size_t>(dice.below(static_cast<int>(names.size())));
    const bool under_all = dice.chance(.5);
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (under_all || i == one) dict.insert(names[i], values);
    }
  }
  return dict;
}

void load_dict(const std::vector<NamedTensor>& tensors, const Load& load, bool all, Dice& dice) {
  const auto dict = draw_dict(tensors, all, dice);
  load(dict, all);
  for (const auto& [name, values] : dict) Tensor(values).zero_();  // the program's again
}

void write_tensor(const Tensor& tensor, Dice& dice) {
  if (d2d::overlaps(tensor)) return;
  auto x = tensor;
  const double value = dice.number(-2, 2);
  auto generator = at::detail::createCPUGenerator(dice.next());
  const bool draws = x.is_floating_point();
  switch (dice.below(8)) {
    case 0:
      x.fill_(dice.between(0, 1));
      return;
    case 1:
      x.zero_();
      return;
    case 2:
      x.copy_(values_for(x, x.scalar_type(), generator));
      return;
    case 3:
      if (draws) x.mul_(value);
      return;
    case 4:
      if (draws) torch::nn::init::normal_(x, 0, .5);
      return;
    case 5:
      if (draws) x.uniform_(-1, 1);
      return;
    case 6:
      if (x.dim() > 0 && x.size(0) > 0) x.select(0, 0).fill_(1);
      return;
    default:
      if (draws) x.clamp_(-.5, .5);
  }
}

Kind kind_of(std::uint64_t seed) { return static_cast<Kind>(Dice(seed).below(kKinds)); }

}  // namespace
}  // namespace between

void act_between(torch::nn::Module& module, const Load& load, std::uint64_t seed,
                 std::vector<std::string>& seen) {
  using namespace between;
  const at::NoGradGuard no_grad;
  const auto tensors = checkpoints::tensors_of(module);
  if (tensors.empty()) return;
  Dice dice(Dice(seed).next());
  const auto kind = kind_of(seed);
  try {
    if (kind != kWrite) return load_dict(tensors, load, kind == kLoadAll, dice);
    const auto number = static_cast<std::size_t>(dice.below(static_cast<int>(tensors.size())));
    write_tensor(tensors[number].tensor, dice);
  } catch (const std::exception&) {
    seen.push_back(name_of_between(seed) + Builder::kThrows);
  }
}

std::string name_of_between(std::uint64_t seed) {
  using namespace between;
  switch (kind_of(seed)) {
    case kLoadAll:
      return "load all";
    case kLoadSome:
      return "load some";
    default:
      return "write";
  }
}

}  // namespace smp::fuzz
