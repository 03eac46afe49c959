// smp/wait.h: results of remote modules that are not there yet.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "smp/codec.h"
#include "smp/detail/export.h"

namespace smp {

namespace detail {
SMP_API void await(const std::vector<at::Tensor>& tensors);
}  // namespace detail

/// Waits until all tensors of `value` are there, and throws what the calls that made them threw. A
/// call of a module on another rank may return before the module has run (setting
/// `promised_outputs`): its tensors fetch their values when something needs them, an operator or a
/// size. A tensor that only becomes an argument of another remote module goes there by itself. The
/// wait is needed where the time of an exception matters, and before `data_ptr()` of a tensor that
/// was not used:
/// @code
///   try {
///     y = smp::wait(expert(x));
///   } catch (const std::exception&) {
///     y = x;
///   }
/// @endcode
/// Does nothing for values that are there, outside of steps too.
/// @return  value
template <class T>
T wait(T value) {
  static_assert(is_crossable_v<T>, "smp::wait() of a type that no remote module can return");
  Writer out;
  out.put(value);
  detail::await(std::move(out).take().tensors);
  return value;
}

/// Waits for all calls that the running body or module has made, and throws the exception of the
/// first call that failed. Does nothing outside of steps.
SMP_API void wait();

}  // namespace smp
