// smp/tp/replacement.h: which distributed module stands in for which class of modules (paper §5.2,
// App. E.3), and what was replaced.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "smp/codec.h"
#include "smp/detail/call.h"
#include "smp/detail/export.h"
#include "smp/detail/signature.h"
#include "smp/error.h"
#include "smp/tp/distributed_module.h"

namespace smp {

/// The rule by which modules of one class are replaced.
struct ReplacementRule {
  /// Returns why `original` cannot be replaced on `ranks` ranks, or an empty text: sizes that
  /// cannot be divided, options that are not supported.
  std::function<std::string(const torch::nn::Module& original, int ranks)> obstacle;
  /// Makes the module that stands in, which takes over the parameters of `original`.
  std::function<std::shared_ptr<StandIn>(torch::nn::Module& original)> make;
};

/// Registers the rule for modules of the class that std::type_info names: the Impl, not the routed
/// one. It replaces an earlier rule of the class. Call it alike on every rank, before the model is
/// wrapped. Threads: one at a time.
SMP_API void register_replacement(const std::type_info& impl, ReplacementRule rule);

namespace detail {

/// The types of the hooks for forward, and whether it may be called without them.
template <class Distributed, class Original, class Given>
struct ForwardTypes;
template <class Distributed, bool C, bool N, class R, class... A, bool DC, bool DN, class DR,
          class... B>
struct ForwardTypes<Distributed, Signature<C, N, R, A...>, Signature<DC, DN, DR, B...>> {
  using Result = std::decay_t<R>;
  using Given = std::decay_t<DR>;
  using Arguments = std::tuple<std::decay_t<A>...>;
  using Hook = std::function<std::tuple<std::decay_t<B>...>(std::decay_t<A>&...)>;
  static constexpr bool kSameArguments =
      requires(Distributed & module, std::decay_t<A>&... values) {
    module.forward(values...);
  };
  static constexpr bool kSameResult = std::is_convertible_v<Given, Result>;
};

template <class Module>
using ForwardSignature = typename SignatureOf<decltype(&Module::forward)>::type;
template <class Original, class Distributed>
using ForwardTypesOf =
    ForwardTypes<Distributed, ForwardSignature<Original>, ForwardSignature<Distributed>>;

}  // namespace detail

/// Hooks that adapt a distributed module to a class that it was not written for (paper App. E.3).
/// Each may be left out where the types allow it. All run on every rank.
template <class Original, class Distributed>
struct ReplacementHooks {
  using Types = detail::ForwardTypesOf<Original, Distributed>;

  /// Makes the module from `original`, sizes and weights. If it has parameters of its own it takes
  /// the place of `original` in the model, whose parameters and children are dropped: the names are
  /// those that it has, below the path of `original`, and an optimizer is made after the model was
  /// wrapped. set_whole_values() gives it the weights, in the dtype and on the device that they
  /// have; `init` decides what is frozen. Default: `Distributed(original)`.
  std::function<std::shared_ptr<Distributed>(Original& original)> init = {};
  /// Converts the arguments of Original::forward to those of Distributed::forward.
  typename Types::Hook forward = {};
  /// Converts the result of Distributed::forward to that of Original::forward.
  std::function<typename Types::Result(typename Types::Given)> result = {};
  /// Returns why `original` cannot be spread over `ranks` ranks, or an empty text. Default:
  /// `Distributed::obstacle(original, ranks)`, or an empty text if the class has no such function.
  std::function<std::string(const Original& original, int ranks)> obstacle = {};
};

namespace detail {

/// Checks a rule for modules of class `original`. @throws UsageError  `holds` is false.
SMP_API void require_of_rule(bool holds, const std::type_info& original, const char* problem);

/// A distributed module that answers calls of forward of another class.
template <class Original, class Distributed>
class ForwardStandIn final : public StandIn {
  using Hooks = ReplacementHooks<Original, Distributed>;
  using Types = typename Hooks::Types;

 public:
  ForwardStandIn(std::shared_ptr<Distributed> distributed, const Hooks& hooks)
      : distributed_(std::move(distributed)), hooks_(hooks) {}
  Packet run(const CallEntry& entry, Packet& arguments) override {
    const auto given = given_.find(&entry);
    const auto count = given != given_.end() ? given->second : count_of(entry, arguments);
    return run_with(count, arguments, std::make_index_sequence<kArguments + 1>());
  }
  torch::nn::Module& module() noexcept override { return *distributed_; }

 private:
  static constexpr std::size_t kArguments = std::tuple_size_v<typename Types::Arguments>;

  /// Reads the first arguments, and nothing else is there.
  template <std::size_t... I>
  static auto read(Packet& arguments, std::index_sequence<I...>) {
    Reader in(arguments);
    std::tuple<std::tuple_element_t<I, typename Types::Arguments>...> values{
        in.get<std::tuple_element_t<I, typename Types::Arguments>>()...};
    in.finish();
    return values;
  }
  template <std::size_t kCount>
  static bool has(Packet arguments) {
    try {
      read(arguments, std::make_index_sequence<kCount>());
      return true;
    } catch (const InternalError&) {
      return false;
    }
  }
  /// A call leaves out arguments that have defaults; how many are there is looked up once.
  std::size_t count_of(const CallEntry& entry, const Packet& arguments) {
    std::size_t count = kArguments;
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      static_cast<void>(
          ((has<kArguments - I>(arguments) && (count = kArguments - I, true)) || ...));
    }
    (std::make_index_sequence<kArguments + 1>());
    given_[&entry] = count;
    return count;
  }
  template <std::size_t... I>
  Packet run_with(std::size_t count, Packet& arguments, std::index_sequence<I...>) {
    Packet answer;
    static_cast<void>(((I == count && (answer = run_with<I>(arguments), true)) || ...));
    return answer;
  }
  template <std::size_t kCount>
  Packet run_with(Packet& arguments) {
    auto values = read(arguments, std::make_index_sequence<kCount>());
    Writer out;
    out.put<typename Types::Result>(result_of(std::apply(
        [this](auto&... value) -> typename Types::Given { return forward(value...); }, values)));
    return std::move(out).take();
  }
  template <class... A>
  typename Types::Given forward(A&... values) {
    constexpr bool kAll = sizeof...(A) == kArguments;
    if constexpr (requires { distributed_->forward(values...); }) {
      if (!hooks_.forward) return distributed_->forward(values...);
    }
    if constexpr (kAll) {
      return std::apply([this](auto&&... given) { return distributed_->forward(given...); },
                        hooks_.forward(values...));
    } else {
      require_of_rule(
          false, typeid(Original),
          "a call leaves out arguments that have defaults, which the distributed module "
          "does not know; give them all");
      throw InternalError("require_of_rule() has thrown");
    }
  }
  typename Types::Result result_of(typename Types::Given given) {
    if constexpr (Types::kSameResult) {
      if (!hooks_.result) return given;
    }
    return hooks_.result(std::move(given));
  }

  const std::shared_ptr<Distributed> distributed_;
  const Hooks hooks_;
  std::map<const CallEntry*, std::size_t> given_;  // arguments, by method and signature
};

template <class Original, class Distributed>
void require_hooks(const ReplacementHooks<Original, Distributed>& hooks) {
  using Types = typename ReplacementHooks<Original, Distributed>::Types;
  const auto& original = typeid(Original);
  require_of_rule(hooks.init || std::is_constructible_v<Distributed, Original&>, original,
                  "the distributed class has no constructor that takes the original; give the "
                  "hook init");
  require_of_rule(hooks.forward || Types::kSameArguments, original,
                  "forward of the distributed class takes other arguments; give the hook forward");
  require_of_rule(hooks.result || Types::kSameResult, original,
                  "forward of the distributed class returns something else; give the hook result");
}

template <class Original, class Distributed>
std::string obstacle_of(const ReplacementHooks<Original, Distributed>& hooks,
                        const Original& original, int ranks) {
  if (hooks.obstacle) return hooks.obstacle(original, ranks);
  if constexpr (requires { Distributed::obstacle(original, ranks); }) {
    return Distributed::obstacle(original, ranks);
  } else {
    return {};
  }
}

template <class Original, class Distributed>
std::shared_ptr<Distributed> distributed_of(const ReplacementHooks<Original, Distributed>& hooks,
                                            Original& original) {
  if constexpr (std::is_constructible_v<Distributed, Original&>) {
    if (!hooks.init) return std::make_shared<Distributed>(original);
  }
  auto made = hooks.init(original);
  require_of_rule(made != nullptr, typeid(Original), "the hook init returned no module");
  return made;
}

}  // namespace detail

/// Returns the rule that tp_register_with_module() registers.
template <class Original, class Distributed>
ReplacementRule replacement_rule(const ReplacementHooks<Original, Distributed>& hooks = {}) {
  static_assert(std::is_base_of_v<torch::nn::Module, Distributed>);
  detail::require_hooks(hooks);
  return {[hooks](const torch::nn::Module& original, int ranks) {
            return detail::obstacle_of(hooks, dynamic_cast<const Original&>(original), ranks);
          },
          [hooks](torch::nn::Module& original) -> std::shared_ptr<StandIn> {
            return std::make_shared<detail::ForwardStandIn<Original, Distributed>>(
                detail::distributed_of(hooks, dynamic_cast<Original&>(original)), hooks);
          }};
}

/// Modules of class `Original` (LinearImpl, say, with no routed method but forward) may be replaced
/// by `Distributed`, a DistributedModule with the same forward and
///
///     explicit Distributed(Original& original);   // adopt_slice() and adopt() its parameters
///     static std::string obstacle(const Original& original, int ranks);
///
/// or by any other module that is made of such, with hooks that say what differs. Neither forward
/// is overloaded.
/// @throws UsageError  a hook is missing that the types of the two classes need.
template <class Original, class Distributed>
void tp_register_with_module(const ReplacementHooks<Original, Distributed>& hooks = {}) {
  register_replacement(typeid(Original), replacement_rule<Original, Distributed>(hooks));
}

/// Copies whole tensors into the parameters of `module`, by name (`attention.query.weight`); a
/// sliced parameter takes this rank's part. Parameters take over dtypes and devices. Threads: the
/// rank's.
/// @throws UsageError  a parameter is not named, or a name or a shape is wrong.
SMP_API void set_whole_values(torch::nn::Module& module,
                              const std::map<std::string, at::Tensor>& values);

/// The fate of a module of a class with a registered distributed implementation, of a marked module
/// with parameters and no children, or of a module that was built as a distributed one.
struct ReplacementCandidate {
  std::string path;
  std::string type;
  bool marked = false;
  std::string obstacle;  ///< why it was not replaced; empty if it is spread
  bool built = false;    ///< the program built it so: there was nothing to replace
};

/// Replaces the marked modules in `model` by the rules, as DistributedModel does.
/// @return one row for each candidate, in the order of named_modules(); with one tensor-parallel
///         rank, none
SMP_API std::vector<ReplacementCandidate> replace_marked_modules(torch::nn::Module& model);

}  // namespace smp
