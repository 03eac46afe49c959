// smp/detail/routed_call.h: one method of one module type with one signature, callable from afar.
// Its existence in a program registers it, on every rank alike (paper §4.1).
#pragma once

#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "smp/detail/argument.h"
#include "smp/detail/call.h"
#include "smp/detail/export.h"
#include "smp/error.h"

namespace smp::detail {

/// Returns a hash of the mangled type name, equal on ranks that run the same binary.
SMP_API std::uint64_t call_key(const std::type_info& call);
/// Returns "at::Tensor BlockImpl::forward(at::Tensor const&)" for the type `R (*)(A...)`.
SMP_API std::string signature_text(const std::type_info& function, const std::type_info& impl,
                                   const char* method, bool is_const);
/// Returns "argument 2 (std::function<void ()>) of forward cannot be sent to another rank".
SMP_API std::string obstacle_text(const char* method, int argument, const std::type_info& type,
                                  bool is_reference);
/// Refuses a remote call of an entry that cannot run remotely. @throws UnsupportedError  always
[[noreturn]] SMP_API void refuse_remote_call(const RoutedBase& module, const CallEntry& entry,
                                             const std::string& obstacle);
/// Reports a module that is not of the type of `entry`. @throws InternalError  always
[[noreturn]] SMP_API void fail_wrong_module(const RoutedBase& module, const CallEntry& entry);
/// Runs `entry` on the module that stands in for `module`, in the training mode that `module` has
/// now.
SMP_API Packet run_stand_in(RoutedBase& module, const CallEntry& entry, Packet& arguments);

/// Returns the value of a call that failed while the stack is being unwound, when no other
/// exception may be thrown. @throws StepAborted  R has no default constructor
template <class R>
R empty_result() {
  if constexpr (std::is_void_v<R>) {
    return;
  } else if constexpr (std::is_default_constructible_v<R>) {
    return R{};
  } else {
    throw StepAborted{};
  }
}

inline bool is_wrapped(const RoutedBase& module) {
  return module.smp_wrapper && module.smp_wrapper->applies(module);
}

/// One method of one module type with one signature. `Self` is the user's Impl, const for a const
/// method; `Method` names the method (smp/detail/routed.h).
template <class Method, class Self, class R, class... A>
class RoutedCall {
 public:
  static constexpr bool kCrosses = crosses_as_result_v<R> && (crosses_as_argument_v<A> && ...);

  static const CallEntry& entry() {
    static const CallEntry& registered = register_call(describe());
    return registered;
  }

  /// Returns why this call cannot cross ranks, or an empty text if it can.
  static std::string obstacle() {
    if constexpr (kCrosses) {
      return {};
    } else if constexpr (!crosses_as_result_v<R>) {
      return obstacle_text(Method::kName, 0, typeid(R), std::is_reference_v<R>);
    } else {
      std::string text;
      int position = 0;
      ((++position, text.empty() && !crosses_as_argument_v<A> &&
                        (text = obstacle_text(Method::kName, position, typeid(A),
                                              std::is_lvalue_reference_v<A>),
                         true)),
       ...);
      return text;
    }
  }

  /// Calls the method where its module lives.
  template <class... Given>
  static R invoke(RoutedBase& module, Self& self, Given&&... given) {
    static_cast<void>(&registered_);
    return route(
        module,
        [&]() -> R {
          if (module.smp_stand_in || (kCrosses && is_wrapped(module))) [[unlikely]]
            return packed(module, given...);
          return Method::template call<Self>(self, std::forward<Given>(given)...);
        },
        [&](CallHandler& handler) -> R { return remote(handler, module, given...); });
  }

 private:
  static CallEntry describe() {
    static const std::string text =
        signature_text(typeid(R(*)(A...)), typeid(Self), Method::kName, std::is_const_v<Self>);
    CallEntry entry{call_key(typeid(RoutedCall)), text.c_str(), nullptr, &typeid(RoutedCall)};
    if constexpr (kCrosses) entry.run = &run;
    return entry;
  }

  static R remote(CallHandler& handler, RoutedBase& module,
                  const std::remove_reference_t<A>&... arguments) {
    if constexpr (!kCrosses) {
      refuse_remote_call(module, entry(), obstacle());
    } else {
      Writer out;
      (put_argument<A>(out, arguments), ...);
      auto answer = handler.call(module, entry(), module.smp_place.owner, std::move(out).take(),
                                 {1, holds_only_tensors_v<std::remove_cv_t<R>>});
      if (!answer) return empty_result<R>();
      return unpack(*answer);
    }
  }

  /// Runs the call here with arguments and result packed, as another module or a wrapper needs it.
  static R packed(RoutedBase& module, const std::remove_reference_t<A>&... arguments) {
    if constexpr (!kCrosses) {
      refuse_remote_call(module, entry(), obstacle());
    } else {
      Writer out;
      (put_argument<A>(out, arguments), ...);
      auto taken = std::move(out).take();
      auto answer = run(module, taken);
      return unpack(answer);
    }
  }

  static R unpack(Packet& answer) {
    Reader in(answer);
    if constexpr (std::is_void_v<R>) {
      in.finish();
    } else {
      auto result = in.get<std::remove_cv_t<R>>();
      in.finish();
      return result;
    }
  }

  static Packet run(RoutedBase& module, Packet& arguments) {
    if (!is_wrapped(module)) return run_method(module, arguments);
    return module.smp_wrapper->run(module, entry(), arguments, &run_method);
  }

  static Packet run_method(RoutedBase& module, Packet& arguments) {
    auto* const self = static_cast<Self*>(module.smp_as(typeid(Self)));
    if (self == nullptr) fail_wrong_module(module, entry());
    if (module.smp_stand_in) return run_stand_in(module, entry(), arguments);
    Reader in(arguments);
    std::tuple<Received<A>...> received{Received<A>(in)...};
    in.finish();
    Writer out;
    std::apply(
        [&](auto&... argument) {
          if constexpr (std::is_void_v<R>) {
            Method::template call<Self>(*self, static_cast<A>(argument.pass())...);
          } else {
            out.put<std::remove_cv_t<R>>(
                Method::template call<Self>(*self, static_cast<A>(argument.pass())...));
          }
        },
        received);
    return std::move(out).take();
  }

  inline static const CallEntry* const registered_ = &entry();
};

}  // namespace smp::detail
