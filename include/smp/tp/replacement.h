// smp/tp/replacement.h: which distributed module stands in for which class of modules (paper §5.2,
// App. E.3), and what was replaced.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "smp/call.h"
#include "smp/codec.h"
#include "smp/detail/signature.h"
#include "smp/export.h"
#include "smp/tp/distributed_module.h"

namespace smp {

/// How modules of one class are replaced.
struct ReplacementRule {
  /// Why `original` cannot be replaced on `ranks` ranks, or empty: sizes that cannot be divided,
  /// options that are not supported.
  std::function<std::string(const torch::nn::Module& original, int ranks)> obstacle;
  /// Makes what stands in; takes over the parameters of `original`.
  std::function<std::shared_ptr<StandIn>(torch::nn::Module& original)> make;
};

/// For modules of the class that std::type_info names: the Impl, not the routed one. Replaces an
/// earlier rule of the class. Call it alike on every rank, before the model is wrapped. Threads:
/// one at a time.
SMP_API void register_replacement(const std::type_info& impl, ReplacementRule rule);

namespace detail {

/// A distributed module that answers calls of forward of another class, with the same signature.
template <class Distributed, class Signature>
class ForwardStandIn;
template <class Distributed, bool Const, bool Noexcept, class R, class... A>
class ForwardStandIn<Distributed, Signature<Const, Noexcept, R, A...>> final : public StandIn {
 public:
  explicit ForwardStandIn(std::shared_ptr<Distributed> distributed)
      : distributed_(std::move(distributed)) {}
  Packet run(const CallEntry&, Packet& arguments) override {
    Reader in(arguments);
    std::tuple<std::decay_t<A>...> values{in.get<std::decay_t<A>>()...};
    in.finish();
    Writer out;
    out.put<std::decay_t<R>>(
        std::apply([this](auto&... value) { return distributed_->forward(value...); }, values));
    return std::move(out).take();
  }
  torch::nn::Module& module() noexcept override { return *distributed_; }

 private:
  std::shared_ptr<Distributed> distributed_;
};

}  // namespace detail

/// See tp_register_with_module().
template <class Original, class Distributed>
ReplacementRule replacement_rule() {
  static_assert(std::is_base_of_v<DistributedModule, Distributed>);
  using Signature = typename detail::SignatureOf<decltype(&Original::forward)>::type;
  return {[](const torch::nn::Module& original, int ranks) {
            return Distributed::obstacle(dynamic_cast<const Original&>(original), ranks);
          },
          [](torch::nn::Module& original) -> std::shared_ptr<StandIn> {
            return std::make_shared<detail::ForwardStandIn<Distributed, Signature>>(
                std::make_shared<Distributed>(dynamic_cast<Original&>(original)));
          }};
}

/// Modules of class `Original` (LinearImpl, say, with no routed method but forward) may be replaced
/// by `Distributed`, a DistributedModule with the same forward and
///
///     explicit Distributed(Original& original);   // adopt_slice() and adopt() its parameters
///     static std::string obstacle(const Original& original, int ranks);
template <class Original, class Distributed>
void tp_register_with_module() {
  register_replacement(typeid(Original), replacement_rule<Original, Distributed>());
}

/// What became of a module of whose class a distributed implementation is registered, of one with
/// parameters and no children that is marked, or of one that was built as a distributed module.
struct ReplacementCandidate {
  std::string path;
  std::string type;
  bool marked = false;
  std::string obstacle;  ///< why it was not replaced; empty if it is spread
  bool built = false;    ///< the program built it so: there was nothing to replace
};

/// Replaces the marked modules in `model` by the rules; DistributedModel does. @return one row for
/// each candidate, in the order of named_modules(); with one tensor-parallel rank, none
SMP_API std::vector<ReplacementCandidate> replace_marked_modules(torch::nn::Module& model);

}  // namespace smp
