// A net over four ranks that fails where, when and how a test says.
#pragma once

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <functional>
#include <future>
#include <string>

#include "fiber/scheduler.h"
#include "smp/smp.h"

namespace smp::fault {

/// Where the exception is thrown.
enum class Place {
  kNowhere,
  kBody,
  kBodyAfterBackward,
  kModule,        // outer, on rank 1
  kNestedModule,  // outer.inner, on rank 2
  kBackward,      // of outer.inner
  kFirstHook,     // of first.weight, on rank 0
  kLastHook,      // of last.weight, on rank 3
};

/// What outer, which calls outer.inner, makes of exceptions.
enum class Manner {
  kPlain,
  kHandles,
  kRethrowsStdExceptions,
  kSwallowsThrice,
  kSwallowsForever,
  kCallsInDestructor,
  kCallsOnAThread,
  kIsNoexcept,
};

struct Script {
  Place place = Place::kNowhere;
  Manner manner = Manner::kPlain;
  std::function<void()> raise = [] { throw std::runtime_error("kaboom"); };
};

/// Ranks of run_local share one thread, so that rank 0 can set this for all.
inline Script script;
inline constexpr int kBadMicrobatch = 1;

/// What the modules saw.
struct Seen {
  int handled = 0;
  int std_exceptions = 0;
  int swallowed = 0;
  int empty_results = 0;
};
inline Seen seen;

inline bool in_bad_microbatch() { return current_microbatch() == kBadMicrobatch; }

inline void fail_in_bad_microbatch(Place here) {
  if (script.place == here && in_bad_microbatch()) script.raise();
}

/// Counts module executions on the stack, so that a test sees whether all were unwound.
struct Alive {
  Alive() { ++count; }
  ~Alive() { --count; }
  Alive(const Alive&) = delete;
  Alive& operator=(const Alive&) = delete;
  inline static int count = 0;
};

/// Longer than any message takes: the healthy microbatches wait here while the bad one fails.
inline void linger() {
  if (script.place == Place::kNowhere || in_bad_microbatch()) return;
  static constexpr fiber::WaitReason kLinger{"a while", "", -1, -1};
  fiber::Scheduler::instance().sleep_for(base::kSecond / 100, kLinger);
}

struct FailingBackward : torch::autograd::Function<FailingBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    fail_in_bad_microbatch(Place::kBackward);
    return gradients;
  }
};

struct InnerImpl : torch::nn::Module {
  InnerImpl() : linear(register_module("linear", nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x) {
    const Alive alive;
    fail_in_bad_microbatch(Place::kNestedModule);
    linger();
    return FailingBackward::apply(linear(x).tanh());
  }
  nn::Linear linear;
};
SMP_MODULE(Inner);

struct CallsInDestructor {
  Inner& inner;
  const at::Tensor& x;
  ~CallsInDestructor() {
    if (!inner(x).defined()) ++seen.empty_results;
  }
};

struct OuterImpl : torch::nn::Module {
  OuterImpl()
      : own(register_module("own", nn::Linear(4, 4))), inner(register_module("inner", Inner())) {}

  at::Tensor forward(const at::Tensor& x) {
    const Alive alive;
    fail_in_bad_microbatch(Place::kModule);
    return own(x) + call_inner(x);
  }

  at::Tensor call_inner(const at::Tensor& x) {
    switch (script.manner) {
      case Manner::kPlain:
        return inner(x);
      case Manner::kHandles:
        return call_and_handle(x);
      case Manner::kRethrowsStdExceptions:
        return call_and_rethrow(x);
      case Manner::kSwallowsThrice:
        return call_and_swallow(x, 3);
      case Manner::kSwallowsForever:
        return call_and_swallow(x, 1'000'000'000);
      case Manner::kCallsInDestructor: {
        const CallsInDestructor guard{inner, x};
        return inner(x);
      }
      case Manner::kCallsOnAThread:
        return std::async(std::launch::async, [&] { return inner(x); }).get();
      case Manner::kIsNoexcept:
        return in_bad_microbatch() ? inner(x) : call_noexcept(x);
    }
    return {};
  }

  at::Tensor call_and_handle(const at::Tensor& x) {
    try {
      return inner(x);
    } catch (const std::exception&) {
      ++seen.handled;
      return x;
    }
  }
  at::Tensor call_and_rethrow(const at::Tensor& x) {
    try {
      return inner(x);
    } catch (const std::exception&) {
      ++seen.std_exceptions;
      throw;
    }
  }
  at::Tensor call_and_swallow(const at::Tensor& x, int times) {
    if (in_bad_microbatch()) return inner(x);
    for (int i = 0; i < times; ++i) {
      try {
        return inner(x);
      } catch (...) {
        ++seen.swallowed;
      }
    }
    return x;
  }
  at::Tensor call_noexcept(const at::Tensor& x) noexcept { return inner(x); }

  nn::Linear own;
  Inner inner;
};
SMP_MODULE(Outer);

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", nn::Linear(4, 4))),
        outer(register_module("outer", Outer())),
        last(register_module("last", nn::Linear(4, 1))) {
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return last(outer(first(x))); }
  nn::Linear first;
  Outer outer;
  nn::Linear last;
};
SMP_MODULE(Net);

inline Net make_net() {
  torch::manual_seed(1);
  return {};
}

}  // namespace smp::fault
