// smp/detail/routed.h: a user's module with its calls intercepted (paper §4.1). smp::Routed<Impl>
// derives from Impl and hides, or overrides, the routed methods with the same signatures.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "smp/detail/call.h"
#include "smp/detail/export.h"
#include "smp/detail/routed_call.h"
#include "smp/detail/signature.h"

namespace smp {

/// True, unless specialised, for every class: a module of type Impl may draw random numbers itself.
template <class Impl>
inline constexpr bool draws_random_v = true;

namespace detail {

/// Lets `module.name()` and a printed net show the user's class instead of the wrapper's.
SMP_API bool name_after(torch::nn::Module& module, const std::type_info& impl);
SMP_API std::string type_name(const std::type_info& type);
/// Gives every routed module of `copy` the smp::partition of its original.
SMP_API void copy_pins(const torch::nn::Module& original, torch::nn::Module& copy);
/// Throws UnsupportedError if `module` has its place on a rank already.
SMP_API void refuse_after_placement(const RoutedBase& module, const char* action);
SMP_API void refuse_zero_grad_in_body(const RoutedBase& module);

/// Returns the number of bytes of a torch::nn::Module that are its own. The rest of its last word
/// is not: a class that derives from it puts its first members there.
SMP_API std::size_t module_data_size() noexcept;

/// Marks the constructor that wraps a copy of a plain module.
struct Rewrap {};

/// The base of a routed module: the user's part beside ours. Routed methods are stacked on it.
template <class Impl>
class RoutedRoot : public Impl, public RoutedBase {
  static_assert(std::is_base_of_v<torch::nn::Module, Impl>,
                "SMP_MODULE: the Impl class must derive publicly from torch::nn::Module");
  static_assert(!std::is_base_of_v<RoutedBase, Impl>,
                "SMP_MODULE: derive from NameImpl, not from Name::Impl, which is routed already");

 public:
  using SmpImpl = Impl;
  using Impl::Impl;
  RoutedRoot() = default;
  RoutedRoot(Rewrap, const Impl& plain) : Impl(plain) {}

  torch::nn::Module& smp_module() noexcept override { return *this; }
  void* smp_as(const std::type_info& impl) noexcept override {
    return impl == typeid(Impl) ? static_cast<Impl*>(this) : nullptr;
  }
  std::string smp_type_name() const override { return type_name(typeid(Impl)); }
  bool smp_draws_random() const noexcept override { return draws_random_v<Impl>; }
  StateUse smp_state_use() const noexcept override { return state_use<Impl>(); }
  OwnPart smp_own_part() const noexcept override {
    const Impl& own = *this;
    const torch::nn::Module& base = own;
    const auto* object = reinterpret_cast<const char*>(&own);
    const auto offset = reinterpret_cast<const char*>(&base) - object;
    return {object, sizeof(Impl), static_cast<std::size_t>(offset), module_data_size()};
  }

 protected:
  static std::string smp_obstacle() { return {}; }

 private:
  [[maybe_unused]] bool smp_named_ = name_after(*this, typeid(Impl));
};

/// Maps a method with a signature to the RoutedCall with its types.
template <class Method, class S>
struct Route;
template <class Method, bool Const, bool Noexcept, class R, class... A>
struct Route<Method, Signature<Const, Noexcept, R, A...>> {
  template <class Impl>
  using Self = std::conditional_t<Const, const Impl, Impl>;
  template <class Impl>
  using Call = RoutedCall<Method, Self<Impl>, R, A...>;

  template <class Layer, class... Given>
  static R to(Layer& layer, Given&&... given) {
    using Impl = typename Layer::SmpImpl;
    auto& base = const_cast<std::remove_const_t<Layer>&>(layer);
    return Call<Impl>::invoke(base, static_cast<Self<Impl>&>(base), std::forward<Given>(given)...);
  }
};

/// The signature of one call of an overloaded or templated method, with the types at the place of
/// the call.
template <class Method, class Self, class... A>
struct DeducedSignature {
  using R = typename Method::template Result<Self&, A...>;
  static consteval bool sendable() {
    if constexpr (CallableWith<Method, Self, SentAsT<A>...>) {
      return std::is_same_v<typename Method::template Result<Self&, SentAsT<A>...>, R>;
    } else {
      return false;
    }
  }
  using type =
      std::conditional_t<sendable(), Signature<std::is_const_v<Self>, false, R, SentAsT<A>...>,
                         Signature<std::is_const_v<Self>, false, R, A...>>;
};

/// Stacks one overload for each shorter list of arguments that the method's defaults allow.
template <class Method, class Layer, class S>
struct WithDefaults {
  using type = Layer;
};
template <class Method, class Layer, bool C, bool N, class R, class First, class... Rest>
requires HasDefault<Method, typename Layer::SmpImpl, Signature<C, N, R, First, Rest...>>
struct WithDefaults<Method, Layer, Signature<C, N, R, First, Rest...>> {
  using Shorter = typename DropLast<Signature<C, N, R, First, Rest...>>::type;
  using type = typename WithDefaults<Method, typename Method::template Shorter<Layer, Shorter>,
                                     Shorter>::type;
};

template <class Impl, class Method>
concept HasExactly = requires {
  typename SignatureOf<typename Method::template Pointer<Impl>>::type;
};

template <class Layer, class Method>
struct Stack {
  using type = typename Method::template Deduced<Layer>;
};
template <class Layer, class Method>
requires HasExactly<typename Layer::SmpImpl, Method>
struct Stack<Layer, Method> {
  using S = typename SignatureOf<typename Method::template Pointer<typename Layer::SmpImpl>>::type;
  using type = typename WithDefaults<Method, typename Method::template Exact<Layer, S>, S>::type;
};

}  // namespace detail
}  // namespace smp

// clang-format off
/// Defines SmpMethod_NAME, which intercepts calls of methods named NAME.
#define SMP_ROUTE_METHOD(NAME)                                                                   \
  struct SmpMethod_##NAME {                                                                      \
    static constexpr const char* kName = #NAME;                                                  \
    template <class Class>                                                                       \
    using Pointer = decltype(&Class::NAME);                                                      \
    template <class Self, class... A>                                                            \
    using Result = decltype(std::declval<Self>().NAME(std::declval<A>()...));                    \
    template <class Self, class... A>                                                            \
    static decltype(auto) call(Self& self, A&&... a) {                                           \
      using Class = std::remove_const_t<Self>;                                                   \
      return self.Class::NAME(std::forward<A>(a)...);                                            \
    }                                                                                            \
    struct SameName {                                                                            \
      void NAME();                                                                               \
    };                                                                                           \
    template <class Class>                                                                       \
    struct Both : Class, SameName {};                                                            \
    template <class Class>                                                                       \
    static constexpr bool kExists = !requires { &Both<Class>::NAME; };                           \
                                                                                                 \
    template <class Layer, class S>                                                              \
    struct Exact;                                                                                \
    template <class Layer, bool N, class R, class... A>                                          \
    struct Exact<Layer, ::smp::detail::Signature<false, N, R, A...>> : Layer {                   \
      using Layer::Layer;                                                                        \
      using Route =                                                                              \
          ::smp::detail::Route<SmpMethod_##NAME, ::smp::detail::Signature<false, N, R, A...>>;   \
      R NAME(A... a) noexcept(N) { return Route::to(*this, std::forward<A>(a)...); }             \
                                                                                                 \
     protected:                                                                                  \
      static std::string smp_obstacle() {                                                        \
        auto text = Layer::smp_obstacle();                                                       \
        return text.empty() ? Route::template Call<typename Layer::SmpImpl>::obstacle() : text;  \
      }                                                                                          \
    };                                                                                           \
    template <class Layer, bool N, class R, class... A>                                          \
    struct Exact<Layer, ::smp::detail::Signature<true, N, R, A...>> : Layer {                    \
      using Layer::Layer;                                                                        \
      using Route =                                                                              \
          ::smp::detail::Route<SmpMethod_##NAME, ::smp::detail::Signature<true, N, R, A...>>;    \
      R NAME(A... a) const noexcept(N) { return Route::to(*this, std::forward<A>(a)...); }       \
                                                                                                 \
     protected:                                                                                  \
      static std::string smp_obstacle() {                                                        \
        auto text = Layer::smp_obstacle();                                                       \
        return text.empty() ? Route::template Call<typename Layer::SmpImpl>::obstacle() : text;  \
      }                                                                                          \
    };                                                                                           \
                                                                                                 \
    /* The & keeps these out of torch::nn::AnyModule's way, which takes &Impl::forward. */       \
    template <class Layer, class S>                                                              \
    struct Shorter;                                                                              \
    template <class Layer, bool N, class R, class... A>                                          \
    struct Shorter<Layer, ::smp::detail::Signature<false, N, R, A...>> : Layer {                 \
      using Layer::Layer;                                                                        \
      using Layer::NAME;                                                                         \
      R NAME(A... a)& {                                                                          \
        using S = ::smp::detail::Signature<false, N, R, A...>;                                   \
        return ::smp::detail::Route<SmpMethod_##NAME, S>::to(*this, std::forward<A>(a)...);      \
      }                                                                                          \
    };                                                                                           \
    template <class Layer, bool N, class R, class... A>                                          \
    struct Shorter<Layer, ::smp::detail::Signature<true, N, R, A...>> : Layer {                  \
      using Layer::Layer;                                                                        \
      using Layer::NAME;                                                                         \
      R NAME(A... a) const& {                                                                    \
        using S = ::smp::detail::Signature<true, N, R, A...>;                                    \
        return ::smp::detail::Route<SmpMethod_##NAME, S>::to(*this, std::forward<A>(a)...);      \
      }                                                                                          \
    };                                                                                           \
                                                                                                 \
    template <class Layer>                                                                       \
    struct Deduced : Layer {                                                                     \
      static_assert(kExists<typename Layer::SmpImpl>,                                            \
                    "SMP_MODULE: the Impl class has no method " #NAME);                          \
      using Layer::Layer;                                                                        \
      template <class... A>                                                                      \
      auto NAME(A&&... a) -> Result<typename Layer::SmpImpl&, A...> {                            \
        using S = ::smp::detail::DeducedSignature<SmpMethod_##NAME, typename Layer::SmpImpl,     \
                                                  A...>;                                         \
        return ::smp::detail::Route<SmpMethod_##NAME, typename S::type>::to(                     \
            *this, std::forward<A>(a)...);                                                       \
      }                                                                                          \
      template <class... A>                                                                      \
      auto NAME(A&&... a) const -> Result<const typename Layer::SmpImpl&, A...> {                \
        using S = ::smp::detail::DeducedSignature<SmpMethod_##NAME,                              \
                                                  const typename Layer::SmpImpl, A...>;          \
        return ::smp::detail::Route<SmpMethod_##NAME, typename S::type>::to(                     \
            *this, std::forward<A>(a)...);                                                       \
      }                                                                                          \
    };                                                                                           \
  };
// clang-format on

namespace smp {
namespace detail {

SMP_ROUTE_METHOD(forward)

/// Stacks forward, if there is one, and the named methods.
template <class Layer, class Methods>
struct StackAll {
  using type = Layer;
};
template <class Layer, class Method, class... Rest>
struct StackAll<Layer, TypeList<Method, Rest...>>
    : StackAll<typename Stack<Layer, Method>::type, TypeList<Rest...>> {};

template <class Impl, bool HasForward>
struct StackForward {
  using type = RoutedRoot<Impl>;
};
template <class Impl>
struct StackForward<Impl, true> : Stack<RoutedRoot<Impl>, SmpMethod_forward> {};

template <class Impl, class Methods>
using RoutedLayers =
    typename StackAll<typename StackForward<Impl, SmpMethod_forward::kExists<Impl>>::type,
                      Methods>::type;

struct NoMethods {
  using List = TypeList<>;
};

}  // namespace detail

/// The class that SMP_MODULE(Name) holds in place of NameImpl. A placed module refuses what would
/// need the parameters of other ranks: clone, save, load and to(...).
template <class Impl, class Methods = detail::NoMethods>
class Routed : public detail::RoutedLayers<Impl, typename Methods::List> {
  static_assert(!std::is_final_v<Impl>, "SMP_MODULE: the Impl class must not be final");
  using Layers = detail::RoutedLayers<Impl, typename Methods::List>;

 public:
  using Impl::load;
  using Impl::save;
  using Impl::to;
  using Impl::zero_grad;
  using Layers::Layers;

  std::string smp_cannot_cross() const override {
    if constexpr (std::is_same_v<Layers, detail::RoutedRoot<Impl>>) {
      return "it has neither forward nor another routed method";
    } else {
      return Layers::smp_obstacle();
    }
  }

  /// Returns a routed copy of this module and everything below it.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override {
    detail::refuse_after_placement(*this, "clone()");
    auto copy = Impl::clone(device);
    if constexpr (std::is_copy_constructible_v<Impl>) {
      if (const auto* plain = dynamic_cast<const Impl*>(copy.get())) {
        copy = std::make_shared<Routed>(detail::Rewrap{}, *plain);
      }
    }
    detail::copy_pins(*this, *copy);
    return copy;
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    detail::refuse_after_placement(*this, "save()");
    Impl::save(archive);
  }
  void load(torch::serialize::InputArchive& archive) override {
    detail::refuse_after_placement(*this, "load()");
    Impl::load(archive);
  }
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override {
    detail::refuse_after_placement(*this, "to()");
    Impl::to(device, dtype, non_blocking);
  }
  void to(torch::Dtype dtype, bool non_blocking = false) override {
    detail::refuse_after_placement(*this, "to()");
    Impl::to(dtype, non_blocking);
  }
  void to(torch::Device device, bool non_blocking = false) override {
    detail::refuse_after_placement(*this, "to()");
    Impl::to(device, non_blocking);
  }
  /// Zeroes the gradients of this module.
  /// @throws UsageError  in a step, where other microbatches have added to the gradients.
  void zero_grad(bool set_to_none = true) override {
    detail::refuse_zero_grad_in_body(*this);
    Impl::zero_grad(set_to_none);
  }
};

/// Base of the class that SMP_MODULE(Name) defines.
template <class Impl, class Methods = detail::NoMethods>
class RoutedHolder : public torch::nn::ModuleHolder<Routed<Impl, Methods>> {
 public:
  using torch::nn::ModuleHolder<Routed<Impl, Methods>>::ModuleHolder;

  /// Calls forward. ModuleHolder's own would return void where forward has default arguments.
  template <class Module = Routed<Impl, Methods>, class... A>
  auto operator()(A&&... arguments)
      -> decltype(std::declval<Module&>().forward(std::forward<A>(arguments)...)) {
    return this->get()->forward(std::forward<A>(arguments)...);
  }
};

/// Makes a routed module without a holder: `std::shared_ptr<Net> net =
/// smp::make_module<NetImpl>(8);`
template <class Impl, class... A>
std::shared_ptr<Routed<Impl>> make_module(A&&... arguments) {
  return std::make_shared<Routed<Impl>>(std::forward<A>(arguments)...);
}

}  // namespace smp

/// Tells torch::nn::AnyModule, before it takes &Routed::forward, if there is a forward.
template <class Impl, class Methods>
struct torch::detail::has_forward<smp::Routed<Impl, Methods>> : torch::detail::has_forward<Impl> {};
