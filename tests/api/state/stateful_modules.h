// Modules that keep something from call to call, in members and buffers.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/functional/activation.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "smp/smp.h"

namespace smp {
namespace module_state_test {

using at::Tensor;

constexpr int kWidth = 4;

inline nn::Linear linear() { return nn::Linear(torch::nn::LinearOptions(kWidth, kWidth)); }

/// A scratch tensor that its parent reads after the call.
struct ScratchImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    kept = a(x).tanh();
    return b(kept);
  }
  nn::Linear a = register_module("a", linear());
  nn::Linear b = register_module("b", linear());
  Tensor kept;
};
SMP_MODULE(Scratch);

struct ReadsScratchImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    auto y = block(x);
    y = head(y);
    return y + block->kept.sum();
  }
  Scratch block = register_module("block", Scratch());
  nn::Linear head = register_module("head", linear());
};
SMP_MODULE(ReadsScratch);

/// Skips in a list that is empty before and after, with calls of others in between.
struct UNetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    skips.clear();
    auto y = down1(x).tanh();
    skips.push_back(y);
    y = down2(y).tanh();
    skips.push_back(y);
    y = middle(y);
    y = up1(y + take());
    return up2(y * take());
  }
  Tensor take() {
    auto last = skips.back();
    skips.pop_back();
    return last;
  }
  nn::Linear down1 = register_module("down1", linear());
  nn::Linear down2 = register_module("down2", linear());
  nn::Linear middle = register_module("middle", linear());
  nn::Linear up1 = register_module("up1", linear());
  nn::Linear up2 = register_module("up2", linear());
  std::vector<Tensor> skips;
};
SMP_MODULE(UNet);

/// Its outputs depend on how often it was called.
struct CountingImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    ++calls;
    return inner(x) * (1.0 + 0.1 * calls);
  }
  nn::Linear inner = register_module("inner", linear());
  int calls = 0;
};
SMP_MODULE(Counting);

/// Calls it twice, with others around it.
struct CountsImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return counter(last(counter(first(x)).tanh())); }
  nn::Linear first = register_module("first", linear());
  Counting counter = register_module("counter", Counting());
  nn::Linear last = register_module("last", linear());
};
SMP_MODULE(Counts);

/// A loss of its own, in a vector of constant length: only the element changes.
struct MoeImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const auto weights = torch::softmax(gate(x), 1);
    aux.clear();
    aux.push_back(weights.mean(0).pow(2).sum());
    return one(x) * weights + two(x) * (1 - weights);
  }
  nn::Linear gate = register_module("gate", linear());
  nn::Linear one = register_module("one", linear());
  nn::Linear two = register_module("two", linear());
  std::vector<Tensor> aux;
};
SMP_MODULE(Moe);

struct MoeNetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    auto y = head(moe(x));
    return parent_reads ? y + moe->aux[0] : y;
  }
  Moe moe = register_module("moe", Moe());
  nn::Linear head = register_module("head", linear());
  bool parent_reads = false;
};
SMP_MODULE(MoeNet);

/// Memory from call to call, microbatch to microbatch and step to step.
struct HiddenImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    auto now = in(x).mean(0);
    if (hidden.defined()) now = now + across(hidden);
    hidden = now.tanh();
    return x + hidden;
  }
  nn::Linear in = register_module("in", linear());
  nn::Linear across = register_module("across", linear());
  Tensor hidden;
};
SMP_MODULE(Hidden);

struct RecurrentImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return head(cell(cell(x))); }
  Hidden cell = register_module("cell", Hidden());
  nn::Linear head = register_module("head", linear());
};
SMP_MODULE(Recurrent);

/// Noise from a generator of its own, whose object stays the same.
struct NoisyImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    return inner(x) + at::rand(x.sizes(), generators.at("noise"), x.options());
  }
  nn::Linear inner = register_module("inner", linear());
  std::map<std::string, at::Generator> generators{{"noise", at::detail::createCPUGenerator(5)}};
};
SMP_MODULE(Noisy);

struct AddsNoiseImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return last(noisy(first(x)).tanh()); }
  nn::Linear first = register_module("first", linear());
  Noisy noisy = register_module("noisy", Noisy());
  nn::Linear last = register_module("last", linear());
};
SMP_MODULE(AddsNoise);

/// Noise that does not depend on what came before: of a generator made in the call, or one that is
/// seeded in it.
struct SteadyNoiseImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    own.set_current_seed(7);
    const auto made = at::detail::createCPUGenerator(5);
    return inner(x) + at::rand(x.sizes(), own, x.options()) +
           at::rand(x.sizes(), made, x.options());
  }
  nn::Linear inner = register_module("inner", linear());
  at::Generator own = at::detail::createCPUGenerator(1);
};
SMP_MODULE(SteadyNoise);

struct AddsSteadyNoiseImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return last(noisy(first(x)).tanh()); }
  nn::Linear first = register_module("first", linear());
  SteadyNoise noisy = register_module("noisy", SteadyNoise());
  nn::Linear last = register_module("last", linear());
};
SMP_MODULE(AddsSteadyNoise);

struct EmaImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    auto y = inner(x);
    {
      const torch::NoGradGuard no_grad;
      mean.mul_(0.9).add_(y.mean(0), 0.1);
    }
    return y - mean.clone();
  }
  nn::Linear inner = register_module("inner", linear());
  Tensor mean = register_buffer("mean", torch::zeros({kWidth}));
};
SMP_MODULE(Ema);

/// Moves the nearest entries of a codebook towards what it sees; passes gradients straight through.
struct VqImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const auto code = torch::cdist(x.detach(), codebook).argmin(1);
    const auto entries = codebook.index_select(0, code);
    {
      const torch::NoGradGuard no_grad;
      codebook.index_add_(0, code, 0.1 * (x.detach() - entries));
    }
    return x + (entries - x).detach();
  }
  Tensor codebook =
      register_buffer("codebook", torch::linspace(-1, 1, 3 * kWidth).reshape({3, kWidth}));
};
SMP_MODULE(Vq);

struct BuffersImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return last(vq(ema(first(x)))) + ema->inner(x); }
  nn::Linear first = register_module("first", linear());
  Ema ema = register_module("ema", Ema());
  Vq vq = register_module("vq", Vq());
  nn::Linear last = register_module("last", linear());
};
SMP_MODULE(Buffers);

/// A table that the first call makes.
struct MaskedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    if (!mask.defined()) mask = torch::ones({kWidth}, x.options()).cumsum(0) / kWidth;
    return inner(x * mask);
  }
  nn::Linear inner = register_module("inner", linear());
  Tensor mask;
};
SMP_MODULE(Masked);

struct MasksImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return two(one(x).tanh()); }
  Masked one = register_module("one", Masked());
  Masked two = register_module("two", Masked());
};
SMP_MODULE(Masks);

/// Names what it keeps: after the first call the map itself stays as it is.
struct NamingImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    features["hidden"] = a(x).tanh();
    return b(features["hidden"]);
  }
  nn::Linear a = register_module("a", linear());
  nn::Linear b = register_module("b", linear());
  std::map<std::string, Tensor> features;
};
SMP_MODULE(Naming);

struct ReadsFeaturesImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const auto y = head(block(x));
    return y + block->features.at("hidden").sum();
  }
  Naming block = register_module("block", Naming());
  nn::Linear head = register_module("head", linear());
};
SMP_MODULE(ReadsFeatures);

/// An object that one module writes and another reads; neither is above the other.
struct Notes {
  Tensor hidden;
};

struct WriterImpl : torch::nn::Module {
  explicit WriterImpl(std::shared_ptr<Notes> notes) : notes(std::move(notes)) {}
  Tensor forward(const Tensor& x) {
    notes->hidden = inner(x).tanh();
    return notes->hidden * 2;
  }
  nn::Linear inner = register_module("inner", linear());
  std::shared_ptr<Notes> notes;
};
SMP_MODULE(Writer);

struct ReaderImpl : torch::nn::Module {
  explicit ReaderImpl(std::shared_ptr<Notes> notes) : notes(std::move(notes)) {}
  Tensor forward(const Tensor& x) { return inner(x) + notes->hidden; }
  nn::Linear inner = register_module("inner", linear());
  std::shared_ptr<Notes> notes;
};
SMP_MODULE(Reader);

struct PassesNotesImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return reader(middle(writer(x))); }
  std::shared_ptr<Notes> notes = std::make_shared<Notes>();
  Writer writer = register_module("writer", Writer(notes));
  nn::Linear middle = register_module("middle", linear());
  Reader reader = register_module("reader", Reader(notes));
};
SMP_MODULE(PassesNotes);

/// A tensor that is no buffer, written in place: the object's own bytes stay as they are.
struct AveragesImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    average.mul_(0.5).add_(x.detach().mean(0));
    return inner(x - average);
  }
  nn::Linear inner = register_module("inner", linear());
  Tensor average = torch::zeros({kWidth}, torch::kDouble);
};
SMP_MODULE(Averages);

struct AveragedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return last(average(first(x)).tanh()); }
  nn::Linear first = register_module("first", linear());
  Averages average = register_module("average", Averages());
  nn::Linear last = register_module("last", linear());
};
SMP_MODULE(Averaged);

/// Not routed, with a memory.
struct PlainImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    last = last.defined() ? (last * 0.5 + x.detach().mean(0)) : x.detach().mean(0);
    return x + last;
  }
  Tensor last;
};
TORCH_MODULE(Plain);

struct HoldsPlainImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return two(plain(one(x))); }
  nn::Linear one = register_module("one", linear());
  Plain plain = register_module("plain", Plain());
  nn::Linear two = register_module("two", linear());
};
SMP_MODULE(HoldsPlain);

/// The model itself is not routed, and has a memory.
struct PlainRootImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    ++calls;
    return two(one(x).tanh()) * (remembers ? calls : 1);
  }
  nn::Linear one = register_module("one", linear());
  nn::Linear two = register_module("two", linear());
  bool remembers = false;
  int calls = 0;
};
TORCH_MODULE(PlainRoot);

}  // namespace module_state_test
}  // namespace smp
