// Every processor's loop against the portable one, to the bit, and that one against LibTorch.
#include "precision/step_loop.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "precision/fused_step.h"
#include "precision/stochastic_rounding.h"

namespace smp::precision {
namespace step_loop_test {

using at::Tensor;

AdamFactors adam_factors(int step, double rate, double decay, bool decoupled) {
  const double correction1 = 1 - std::pow(0.9, step), correction2 = 1 - std::pow(0.999, step);
  AdamFactors factors{};
  factors.decay = static_cast<float>(decoupled ? 1 - rate * decay : 1);
  factors.penalty = static_cast<float>(decoupled ? 0 : decay);
  factors.beta1 = 0.9f;
  factors.take1 = static_cast<float>(1 - 0.9);
  factors.beta2 = 0.999f;
  factors.take2 = static_cast<float>(1 - 0.999);
  factors.root2 = static_cast<float>(std::sqrt(correction2));
  factors.inverse_root2 = static_cast<float>(1 / std::sqrt(correction2));
  factors.eps = 1e-8f;
  factors.step = static_cast<float>(-(rate / correction1));
  return factors;
}

SgdFactors sgd_factors(bool fresh, bool nesterov) {
  SgdFactors factors{};
  factors.penalty = 0.03f;
  factors.momentum = 0.9f;
  factors.take = static_cast<float>(nesterov ? 1 : 1 - 0.2);
  factors.fresh = fresh;
  factors.nesterov = nesterov;
  factors.step = -0.01f;
  return factors;
}

/// Numbers of all sizes, with infinities, NaN and denormals among them.
Tensor odd_numbers(std::int64_t count, at::ScalarType type) {
  const float infinity = std::numeric_limits<float>::infinity();
  auto numbers = torch::randn({count}) * torch::pow(10.0, torch::randint(-6, 3, {count}));
  const auto odd = torch::tensor({infinity, -infinity, std::nanf(""), 3.4e38f, -3.4e38f, 1e-40f,
                                  -0.0f, 0.0f, 65504.0f, 1e-7f});
  for (std::int64_t i = 0; i < count; ++i) {
    if (i % 13 == 5) numbers[i] = odd[i / 13 % odd.numel()];
  }
  return numbers.to(type);
}

/// A parameter and what its step reads and writes.
struct Case {
  Tensor parameter, gradient, master, first, second;

  Case(std::int64_t count, at::ScalarType type, at::ScalarType gradient_type, bool masters)
      : parameter(odd_numbers(count, type)),
        gradient(odd_numbers(count, gradient_type)),
        first(torch::randn({count})),
        second(torch::rand({count})) {
    if (masters) master = parameter.to(torch::kFloat) + 1e-5;
  }
  Case copy() const {
    Case made = *this;
    for (auto* tensor :
         {&made.parameter, &made.gradient, &made.master, &made.first, &made.second}) {
      if (tensor->defined()) *tensor = tensor->clone();
    }
    return made;
  }
  StepTensors pointers() const {
    const auto number = [](const Tensor& tensor) {
      return tensor.scalar_type() == at::kFloat      ? Number::kFloat
             : tensor.scalar_type() == at::kBFloat16 ? Number::kBFloat16
                                                     : Number::kHalf;
    };
    return {parameter.data_ptr(),
            number(parameter),
            gradient.data_ptr(),
            number(gradient),
            master.defined() ? master.data_ptr<float>() : nullptr,
            first.data_ptr<float>(),
            second.data_ptr<float>()};
  }
};

/// Bits, but for those of NaN.
bool same_bits(const Tensor& a, const Tensor& b) {
  if (!a.defined()) return !b.defined();
  const auto type = a.scalar_type() == at::kFloat ? torch::kInt : torch::kShort;
  return torch::equal(a.isnan(), b.isnan()) &&
         ((a.view(type) == b.view(type)) | a.isnan()).all().item<bool>();
}

void expect_same(const Case& a, const Case& b, const std::string& what) {
  EXPECT_TRUE(same_bits(a.parameter, b.parameter)) << what;
  EXPECT_TRUE(same_bits(a.master, b.master)) << what;
  EXPECT_TRUE(same_bits(a.first, b.first)) << what;
  EXPECT_TRUE(same_bits(a.second, b.second)) << what;
}

struct Types {
  at::ScalarType parameter, gradient;
  bool masters, by_chance;
};
const std::vector<Types> kTypes = {
    {at::kFloat, at::kFloat, false, false},      {at::kBFloat16, at::kBFloat16, true, false},
    {at::kBFloat16, at::kBFloat16, false, true}, {at::kBFloat16, at::kFloat, false, false},
    {at::kHalf, at::kHalf, true, false},         {at::kHalf, at::kFloat, true, false}};

TEST(StepLoop, ProcessorsGiveTheSameBits) {
  torch::manual_seed(1);
  const auto& plain = step_loops().back();
  ASSERT_STREQ(plain.name(), "portable");
  for (const auto& types : kTypes) {
    for (const std::int64_t count : {1, 63, 64, 65, 257, 1000}) {
      const Case start(count, types.parameter, types.gradient, types.masters);
      for (const auto& loops : step_loops()) {
        for (int rule = 0; rule < 4; ++rule) {
          const StepRounding rounding{types.by_chance, 77, 1000003 * rule};
          const auto got = start.copy(), due = start.copy();
          for (const auto& [loop, tensors] : {std::pair{&loops, &got}, std::pair{&plain, &due}}) {
            if (rule < 2) {
              loop->step(tensors->pointers(), count, rounding,
                         adam_factors(3, 0.01, 0.1, rule == 0));
            } else {
              loop->step(tensors->pointers(), count, rounding, sgd_factors(rule == 2, rule == 3));
            }
          }
          expect_same(got, due, loops.name() + std::to_string(rule));
        }
      }
    }
  }
}

/// LibTorch's roots of long rows are not always the nearest, so Adam's last bits may differ.
TEST(StepLoop, FollowsLibTorch) {
  constexpr double kRate = 0.01, kDecay = 0.03;
  for (int rule = 0; rule < 4; ++rule) {
    for (const std::int64_t count : {5, 100003}) {
      torch::manual_seed(count);
      const auto start = torch::randn({count});
      auto due = start.clone().set_requires_grad(true);
      using namespace torch::optim;
      AdamW adamw({due}, AdamWOptions(kRate).weight_decay(kDecay));
      Adam adam({due}, AdamOptions(kRate).weight_decay(kDecay));
      SGD sgd({due}, SGDOptions(kRate).weight_decay(kDecay).momentum(0.9).dampening(0.2));
      SGD nesterov({due}, SGDOptions(kRate).weight_decay(kDecay).momentum(0.9).nesterov(true));
      Optimizer* const optimizer =
          std::vector<Optimizer*>{&adamw, &adam, &sgd, &nesterov}[static_cast<std::size_t>(rule)];
      FusedTensors got{start.clone(), {}, {}, torch::zeros({count}), torch::zeros({count})};
      for (int step = 1; step <= 8; ++step) {
        got.gradient = torch::randn({count}) * std::pow(10, step - 4);
        due.mutable_grad() = got.gradient;
        optimizer->step();
        if (rule < 2) {
          fused_step(got, {}, adam_factors(step, kRate, kDecay, rule == 0));
        } else {
          fused_step(got, {}, sgd_factors(step == 1, rule == 3));
        }
      }
      if (rule < 2) {
        EXPECT_TRUE(torch::allclose(got.parameter, due, 1e-6, 1e-7)) << rule;
      } else {
        EXPECT_TRUE(torch::equal(got.parameter, due)) << rule;
      }
      EXPECT_FALSE(torch::equal(got.parameter, start));
    }
  }
}

/// Masters do what float32 does; what somebody wrote into the parameter counts.
TEST(StepLoop, MastersAreFloat32StepsAndWrittenElementsCount) {
  torch::manual_seed(2);
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const auto start = torch::randn({300}).to(type);
    FusedTensors wide{start.to(at::kFloat), {}, {}, torch::zeros({300}), torch::zeros({300})};
    FusedTensors narrow{
        start.clone(), {}, start.to(at::kFloat), torch::zeros({300}), torch::zeros({300})};
    for (int step = 1; step <= 5; ++step) {
      narrow.gradient = torch::randn({300}).to(type);
      wide.gradient = narrow.gradient.to(at::kFloat);
      for (auto* tensors : {&wide, &narrow}) {
        fused_step(*tensors, {}, adam_factors(step, 1e-4, 0.1, true));
      }
      EXPECT_TRUE(torch::equal(narrow.master, wide.parameter));
      EXPECT_TRUE(torch::equal(narrow.parameter, wide.parameter.to(type)));
      narrow.parameter[step] = 2;
      wide.parameter[step] = 2;
    }
  }
}

/// SGD's value by chance is float32's, rounded by the same bits; of each slice as of the whole.
TEST(StepLoop, ByChanceRoundsFloat32Steps) {
  torch::manual_seed(3);
  const auto start = torch::randn({60, 70}).to(at::kBFloat16);
  const auto gradient = torch::randn({60, 70}).to(at::kBFloat16);
  FusedTensors wide{start.to(at::kFloat), gradient.to(at::kFloat), {}, torch::zeros({60, 70}), {}};
  fused_step(wide, {}, sgd_factors(true, false));
  auto due = torch::empty({60, 70}, at::kBFloat16);
  round_stochastically(wide.parameter, due, 9, {60 * 70, 60 * 70, 0});
  EXPECT_FALSE(torch::equal(due, wide.parameter.to(at::kBFloat16)));
  FusedTensors all{start.clone(), gradient, {}, torch::zeros({60, 70}), {}};
  fused_step(all, Chance{9, {60 * 70, 60 * 70, 0}}, sgd_factors(true, false));
  EXPECT_TRUE(torch::equal(all.parameter, due));
  for (std::int64_t part = 0; part < 2; ++part) {
    const auto cut = [&](const Tensor& tensor) {
      return tensor.narrow(1, 35 * part, 35).contiguous();
    };
    FusedTensors own{cut(start), cut(gradient), {}, torch::zeros({60, 35}), {}};
    fused_step(own, Chance{9, {35, 70, 35 * part}}, sgd_factors(true, false));
    EXPECT_TRUE(torch::equal(own.parameter, cut(due)));
  }
}

TEST(FusedStep, RaisesTheVersionAndKnowsWhatItCannotStep) {
  auto parameter = torch::ones({4}, at::kBFloat16);
  const auto version = parameter._version();
  const FusedTensors tensors{parameter.detach(), torch::ones({4}), {}, torch::zeros({4}), {}};
  ASSERT_TRUE(can_fuse(tensors));
  fused_step(tensors, {}, sgd_factors(true, false));
  EXPECT_GT(parameter._version(), version);
  auto other = tensors;
  other.gradient = torch::ones({5});
  EXPECT_FALSE(can_fuse(other));
  other = tensors;
  other.gradient = torch::ones({4}, torch::kDouble);
  EXPECT_FALSE(can_fuse(other));
  other = tensors;
  other.first = torch::zeros({4}, at::kBFloat16);
  EXPECT_FALSE(can_fuse(other));
  other.parameter = torch::ones({8}, at::kBFloat16).slice(0, 0, 8, 2);
  EXPECT_FALSE(can_fuse(other));
  other = tensors;
  {
    const c10::InferenceMode no_versions;
    other.parameter = torch::ones({4}, at::kBFloat16);
  }
  EXPECT_FALSE(can_fuse(other));
}

}  // namespace step_loop_test
}  // namespace smp::precision
