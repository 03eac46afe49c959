// smp/nn/any.h: a module of any type with one forward, like torch::nn::AnyModule. It also knows how
// the arguments and the result of that forward cross ranks; smp::nn::Sequential needs that.
#pragma once

#include <torch/nn/modules/container/any.h>

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "smp/detail/argument.h"
#include "smp/detail/call.h"
#include "smp/detail/export.h"
#include "smp/detail/routed.h"
#include "smp/detail/signature.h"

namespace smp::nn {

class SequentialImpl;
using torch::nn::AnyValue;

namespace detail {

using Values = std::vector<AnyValue>;

[[noreturn]] SMP_API void fail_argument_type(std::size_t position, const std::type_info& wanted,
                                             const std::type_info& given);
[[noreturn]] SMP_API void fail_argument_count(const torch::nn::Module& module, std::size_t most,
                                              std::size_t given);
[[noreturn]] SMP_API void fail_result_type(const std::type_info& asked,
                                           const std::type_info& given);
[[noreturn]] SMP_API void fail_not_packable(const torch::nn::Module& module);

/// Moves the value out; its type must be exactly T.
template <class T>
T take_argument(AnyValue& value, std::size_t position) {
  if (auto* held = value.try_get<T>()) return std::move(*held);
  fail_argument_type(position, typeid(T), value.type_info());
}

/// A module behind one signature that is known only at run time.
class SMP_API AnyCall {
 public:
  virtual ~AnyCall();

  virtual std::shared_ptr<torch::nn::Module> module() const = 0;
  virtual const std::type_info& type() const noexcept = 0;
  /// Returns the same kind of call on a clone of its module, on `device` if one is given.
  virtual std::shared_ptr<AnyCall> clone(std::optional<torch::Device> device) const = 0;

  virtual AnyValue forward(Values&& arguments) = 0;

  /// True if arguments and result can cross ranks; the four functions below require it.
  virtual bool packable() const = 0;
  virtual void put_arguments(Writer& out, Values& arguments) const = 0;
  virtual Values get_arguments(Reader& in) const = 0;
  virtual void put_result(Writer& out, AnyValue& result) const = 0;
  virtual AnyValue get_result(Reader& in) const = 0;
  virtual AnyValue empty_result() const = 0;
  /// True if the result is a fixed number of tensors and nothing else (CallTraits::only_tensors).
  virtual bool gives_only_tensors() const noexcept = 0;
};

template <class Module>
struct ImplOf {
  using type = Module;
};
template <class Module>
requires requires { typename Module::SmpImpl; }
struct ImplOf<Module> {
  using type = typename Module::SmpImpl;
};

template <class Module, class S>
class TypedCall;

/// A Module whose forward takes A... and returns R.
template <class Module, bool C, bool N, class R, class... A>
class TypedCall<Module, smp::detail::Signature<C, N, R, A...>> final : public AnyCall {
  static_assert(!std::is_void_v<R>, "smp::nn::AnyModule: forward must return a value");
  static constexpr bool kPackable =
      smp::detail::crosses_as_result_v<R> && (smp::detail::crosses_as_argument_v<A> && ...) &&
      (std::is_same_v<smp::detail::StoredOf<A>, std::decay_t<A>> && ...);
  using Result = std::decay_t<R>;

 public:
  explicit TypedCall(std::shared_ptr<Module> module) : module_(std::move(module)) {}

  std::shared_ptr<torch::nn::Module> module() const override { return module_; }
  const std::type_info& type() const noexcept override { return typeid(Module); }
  std::shared_ptr<AnyCall> clone(std::optional<torch::Device> device) const override {
    const torch::nn::Module& module = *module_;  // which may hide clone()
    return std::make_shared<TypedCall>(std::dynamic_pointer_cast<Module>(module.clone(device)));
  }

  AnyValue forward(Values&& arguments) override { return call<sizeof...(A)>(arguments); }

  bool packable() const override { return kPackable; }
  void put_arguments(Writer& out, Values& arguments) const override {
    if constexpr (kPackable) {
      out.count(arguments.size());
      std::size_t position = 0;
      ((position < arguments.size() &&
        (out.put(take_argument<std::decay_t<A>>(arguments[position], position)), ++position)),
       ...);
    } else {
      fail_not_packable(*module_);
    }
  }
  Values get_arguments(Reader& in) const override {
    Values arguments;
    if constexpr (kPackable) {
      const auto count = in.count();
      ((arguments.size() < count && (arguments.emplace_back(in.get<std::decay_t<A>>()), true)),
       ...);
    } else {
      fail_not_packable(*module_);
    }
    return arguments;
  }
  void put_result(Writer& out, AnyValue& result) const override {
    if constexpr (kPackable) {
      out.put(take_argument<Result>(result, 0));
    } else {
      fail_not_packable(*module_);
    }
  }
  AnyValue get_result(Reader& in) const override {
    if constexpr (kPackable) {
      return AnyValue(in.get<Result>());
    } else {
      fail_not_packable(*module_);
    }
  }
  AnyValue empty_result() const override { return AnyValue(smp::detail::empty_result<Result>()); }
  bool gives_only_tensors() const noexcept override {
    if constexpr (kPackable) {
      return holds_only_tensors_v<Result>;
    } else {
      return false;
    }
  }

 private:
  template <std::size_t Count>
  AnyValue call(Values& arguments) {
    if (arguments.size() == Count) return call_with(arguments, std::make_index_sequence<Count>());
    if constexpr (Count == 0) {
      fail_argument_count(*module_, sizeof...(A), arguments.size());
    } else {
      return call<Count - 1>(arguments);
    }
  }
  template <std::size_t... I>
  AnyValue call_with(Values& arguments, std::index_sequence<I...>) {
    using All = std::tuple<smp::detail::Value<A>...>;
    if constexpr (requires { module_->forward(std::declval<std::tuple_element_t<I, All>>()...); }) {
      return AnyValue(
          module_->forward(take_argument<std::tuple_element_t<I, All>>(arguments[I], I)...));
    } else {
      fail_argument_count(*module_, sizeof...(A), arguments.size());
    }
  }

  std::shared_ptr<Module> module_;
};

SMP_API std::shared_ptr<AnyCall> make_call(std::shared_ptr<SequentialImpl> module);
SMP_API std::shared_ptr<AnyCall> make_call(torch::nn::AnyModule module);

template <class Module>
std::shared_ptr<AnyCall> make_call(std::shared_ptr<Module> module) {
  using Impl = typename ImplOf<Module>::type;
  constexpr bool kOneForward = requires {
    typename smp::detail::SignatureOf<decltype(&Impl::forward)>::type;
  };
  static_assert(kOneForward,
                "smp::nn::Sequential and AnyModule: the module must have one forward that is "
                "neither overloaded nor a template; wrap it in a module that has");
  if constexpr (kOneForward) {
    using S = typename smp::detail::SignatureOf<decltype(&Impl::forward)>::type;
    return std::make_shared<TypedCall<Module, S>>(std::move(module));
  } else {
    return nullptr;
  }
}

}  // namespace detail

/// Holds a module of any type and calls its forward, as torch::nn::AnyModule does.
class SMP_API AnyModule {
 public:
  AnyModule() = default;
  template <class Module>
  explicit AnyModule(std::shared_ptr<Module> module)
      : call_(detail::make_call(std::move(module))) {}
  template <class Module, class = torch::detail::enable_if_module_t<Module>>
  explicit AnyModule(Module&& module)
      : AnyModule(std::make_shared<std::decay_t<Module>>(std::forward<Module>(module))) {}
  template <class Module>
  explicit AnyModule(const torch::nn::ModuleHolder<Module>& holder) : AnyModule(holder.ptr()) {}
  explicit AnyModule(torch::nn::AnyModule module) : call_(detail::make_call(std::move(module))) {}

  /// Calls forward; the arguments must have exactly the types of its parameters.
  template <class... A>
  AnyValue any_forward(A&&... arguments) {
    detail::Values values;
    values.reserve(sizeof...(A));
    (values.emplace_back(AnyValue(std::forward<A>(arguments))), ...);
    return call().forward(std::move(values));
  }
  template <class R = torch::Tensor, class... A>
  R forward(A&&... arguments) {
    auto result = any_forward(std::forward<A>(arguments)...);
    if (auto* value = result.template try_get<R>()) return std::move(*value);
    detail::fail_result_type(typeid(R), result.type_info());
  }

  /// Returns a copy with a clone of the module.
  AnyModule clone(std::optional<torch::Device> device = std::nullopt) const;

  std::shared_ptr<torch::nn::Module> ptr() const;
  /// Returns the module as a T, which is its type or a base of it; throws if it is neither.
  template <class T, class = torch::detail::enable_if_module_t<T>>
  std::shared_ptr<T> ptr() const {
    if (auto cast = std::dynamic_pointer_cast<T>(ptr())) return cast;
    detail::fail_result_type(typeid(T), type_info());
  }
  template <class T, class = torch::detail::enable_if_module_t<T>>
  T& get() const {
    return *ptr<T>();
  }
  template <class Holder, class Contained = typename Holder::ContainedType>
  Holder get() const {
    return Holder(ptr<Contained>());
  }
  const std::type_info& type_info() const;
  bool is_empty() const noexcept { return call_ == nullptr; }

  /// Returns the call itself, for smp::nn::Sequential.
  detail::AnyCall& call() const;

 private:
  std::shared_ptr<detail::AnyCall> call_;
};

/// An AnyModule with a name, for `Sequential({{"first", Linear(3, 4)}, ...})`.
class NamedAnyModule {
 public:
  template <class Module>
  NamedAnyModule(std::string name, Module&& module)
      : name_(std::move(name)), module_(std::forward<Module>(module)) {}

  const std::string& name() const noexcept { return name_; }
  const AnyModule& module() const noexcept { return module_; }

 private:
  std::string name_;
  AnyModule module_;
};

}  // namespace smp::nn
