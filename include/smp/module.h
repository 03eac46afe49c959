// smp/module.h: SMP_MODULE, which replaces TORCH_MODULE for modules that may live on another rank
// (paper §4.1).
#pragma once

#include "smp/detail/routed.h"

// clang-format off
#define SMP_EACH_1(DO, X, ...) DO(X) __VA_OPT__(SMP_EACH_2(DO, __VA_ARGS__))
#define SMP_EACH_2(DO, X, ...) DO(X) __VA_OPT__(SMP_EACH_3(DO, __VA_ARGS__))
#define SMP_EACH_3(DO, X, ...) DO(X) __VA_OPT__(SMP_EACH_4(DO, __VA_ARGS__))
#define SMP_EACH_4(DO, X, ...) DO(X) __VA_OPT__(SMP_EACH_5(DO, __VA_ARGS__))
#define SMP_EACH_5(DO, X, ...) DO(X) __VA_OPT__(SMP_EACH_6(DO, __VA_ARGS__))
#define SMP_EACH_6(DO, X, ...) DO(X) __VA_OPT__(SMP_EACH_7(DO, __VA_ARGS__))
#define SMP_EACH_7(DO, X, ...) DO(X) __VA_OPT__(SMP_EACH_8(DO, __VA_ARGS__))
#define SMP_EACH_8(DO, X, ...) DO(X) __VA_OPT__(SMP_MODULE_takes_at_most_8_methods)
#define SMP_COMMA_METHOD(NAME) , SmpMethod_##NAME

/// Defines the holder class Name for ImplType, like TORCH_MODULE_IMPL. Methods named after it are
/// routed beside forward.
#define SMP_MODULE_IMPL(Name, ImplType, ...)                                                     \
  __VA_OPT__(struct Name##SmpMethods {                                                           \
    SMP_EACH_1(SMP_ROUTE_METHOD, __VA_ARGS__)                                                    \
    template <class None, class... Named>                                                        \
    static ::smp::detail::TypeList<Named...> list();                                             \
    using List = decltype(list<void SMP_EACH_1(SMP_COMMA_METHOD, __VA_ARGS__)>());               \
  };)                                                                                            \
  class Name : public ::smp::RoutedHolder<ImplType __VA_OPT__(, Name##SmpMethods)> { /* NOLINT */ \
   public:                                                                                       \
    using ::smp::RoutedHolder<ImplType __VA_OPT__(, Name##SmpMethods)>::RoutedHolder;            \
    using Impl [[maybe_unused]] = ::smp::Routed<ImplType __VA_OPT__(, Name##SmpMethods)>;        \
  }

/// Replaces TORCH_MODULE(Name): calls of NameImpl::forward, and of up to 8 further methods named
/// here, run on the rank that owns the module. `layer(x)`, `layer->forward(x)`, `layer->weight`,
/// register_module, ModuleList and Sequential work as before.
///
/// Not routed: an object made by std::make_shared<NameImpl>() (use Name(...) or smp::make_module),
/// and `this->forward()` inside NameImpl. Arguments and results cross ranks through smp::Codec; a
/// module with others runs with its parent. `T&` parameters and results cannot cross. An overloaded
/// or templated method is routed by the argument types of each call, but not when it is virtual
/// and called through a base class, nor with explicit template arguments.
#define SMP_MODULE(Name, ...) SMP_MODULE_IMPL(Name, Name##Impl __VA_OPT__(, ) __VA_ARGS__)
// clang-format on
