// smp/step.h: one training or evaluation step, run as microbatches (paper §3.2.3, §4.3).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "smp/codec.h"
#include "smp/detail/export.h"
#include "smp/detail/outline.h"
#include "smp/step_output.h"

namespace smp {

/// Names an argument of a step, or a part of one: an argument by its number (from 0), a part by the
/// way to it, "1.mask" or "0.extra.ids" or "2[].boxes", where [] stands for the entries of a list.
/// Members of structs have their names, if g++ compiled the program, and numbers anyway ("1.0");
/// those of tuples and arrays have numbers, those of a pair are `first` and `second`, entries of
/// maps have their keys. A name without the argument's number ("mask") means every part that is
/// called so. What is below the part is meant as well.
class ArgumentName {
 public:
  ArgumentName(int number) : text_(std::to_string(number)) {}
  ArgumentName(const char* text) : text_(text) {}
  ArgumentName(std::string text) : text_(std::move(text)) {}

  const std::string& text() const noexcept { return text_; }
  friend bool operator<(const ArgumentName& a, const ArgumentName& b) noexcept {
    return a.text_ < b.text_;
  }

 private:
  std::string text_;
};

/// How smp::step splits a batch and weighs its microbatches; what is not set is as in Config. How
/// arguments are split without a word is told at smp::step().
struct StepOptions {
  /// Number of slices of the batch; default: Config::microbatches. A batch with fewer rows makes
  /// fewer.
  std::optional<int> microbatches = {};
  /// Arguments, and parts of them, that every microbatch gets whole: those that have no rows, and
  /// those of a type that cannot be taken apart (smp/codec.h). An argument of such a type that is
  /// not named here is passed whole as well, with a warning. Tensors that are passed whole, and
  /// those whose rows overlap in memory (expand(), unfold()), must not be changed in place.
  std::set<ArgumentName> non_split = {};
  /// The axis along which the tensors of an argument, or of a part of one, are split; default:
  /// axis 0. Tensors of a list that is named here have the rows, not the list.
  std::map<ArgumentName, int> split_axes = {};
  /// Lists whose entries are the rows, where each entry might be the rows itself.
  std::set<ArgumentName> split_entries = {};
  /// Weights of microbatches in backward and reduce_mean: "mean" (their share of the rows; equal if
  /// nothing is split), "sum" (1 each), "weights". Default: Config::loss. In backward they are the
  /// shares in the batch of the whole job, all replicas included; what modules add to gradients by
  /// themselves is not weighted (microbatch_weight()).
  std::optional<std::string> loss = {};
  /// One weight per microbatch, for loss = "weights".
  std::vector<double> weights = {};
  /// If true, every rank gets the outputs, otherwise only the first; default:
  /// Config::broadcast_outputs.
  std::optional<bool> broadcast_outputs = {};
};

/// True if the running code belongs to a trial run: before the first step the body runs a few times
/// in advance, on the first microbatch and on pp_rank 0 alone, to see what each module costs and
/// which modules keep state (Config::skip_tracing). `model.backward()` does nothing then. The trial
/// runs in a forked copy of the process, so neither members nor variables nor what is printed nor
/// how far open files have been read show it; what a body does to the world outside, such as to a
/// file that it writes, happens.
SMP_API bool is_tracing() noexcept;

/// Returns the weight of the loss of the microbatch that the calling code works for: what
/// `model.backward(loss)` multiplies the gradient of its `loss` by. Callable in the body of a step,
/// in a module on any rank, in its backward, and in hooks of tensors and parameters; outside of
/// steps it is 1.
///
/// The gradient of a step is the sum over all microbatches of all replicas, of the weighted loss
/// and of what modules add by themselves: a custom function whose backward returns more than the
/// chain rule asks for, a hook, `penalty.backward()` in a module. Nobody scales that, so
///
///     loss = "mean": rows of the microbatch / rows of the job. Multiply by it what one process
///                    adds once a batch. (Without rows: 1 / microbatches of the job.)
///     loss = "sum": 1. What is added counts once a microbatch, as the loss does.
///     loss = "weights": the microbatch's weight / number of different batches in the job.
///
/// With smp::Join replicas without a batch count as it says. In a step without gradients, of which
/// replicas do not tell each other, it is the share in this replica's batch. Threads: the rank's.
/// @throws UsageError  on another thread, while a step runs.
SMP_API double microbatch_weight();

/// Returns the number of steps, training or not, that this rank has begun, in this job and in those
/// that set_step_count() counts. The random numbers of a step are keyed by its number.
SMP_API std::int64_t step_count();
/// Sets the number of steps for a job that goes on where another one ended. Its next step draws the
/// numbers that the other job's next step would have drawn, and no masks are repeated. All ranks
/// call it, outside of steps, with what step_count() was when the checkpoint was written: where
/// replicas have run different numbers of steps (evaluation on one of them, smp::Join), with the
/// largest of smp::all_gather().
/// @throws UsageError  in a step; negative; ranks pass other numbers.
SMP_API void set_step_count(std::int64_t count);

/// Rows of a batch that lie side by side.
struct MicrobatchRows {
  std::int64_t start = 0;
  std::int64_t length = 0;

  bool has(std::int64_t row) const noexcept { return row >= start && row < start + length; }
};

/// Returns the rows that a microbatch gets of a batch of `rows` rows, as smp::step() divides them:
/// as evenly as possible, the longer microbatches first. For Codec<T>::slice (smp/codec.h).
constexpr MicrobatchRows microbatch_rows(std::int64_t rows, int microbatch,
                                         int microbatches) noexcept {
  const auto each = rows / microbatches, longer = rows % microbatches;
  const std::int64_t before = microbatch;
  return {each * before + (before < longer ? before : longer), each + (before < longer ? 1 : 0)};
}

namespace detail {

/// One argument of a step, taken apart so that it can be split.
struct StepArgument {
  Packet packet;
  Outline outline = {};  ///< of the packet
  /// Its type, if nobody can see rows in it and it may have some: one that cannot be taken apart,
  /// or one with a codec of the user's that has entries and does not slice them.
  const std::type_info* undivided = nullptr;
  std::exception_ptr problem = nullptr;  ///< what its codec threw
  /// The number of entries of such an argument, if it is a container.
  std::optional<std::size_t> entries = {};
};

/// What becomes of a part of an argument.
enum class Cut : char {
  kWhole,    ///< every microbatch gets all of it
  kAxis,     ///< the tensors in it are split along an axis
  kEntries,  ///< its entries are the rows
  kOwn,      ///< its Codec says what a microbatch gets
};
/// What became of the containers of a step's arguments, by "1.boxes[]", where it was beyond doubt.
using SeenCuts = std::map<std::string, Cut>;

/// The result of a step for its template: the outputs of all microbatches.
struct StepResult {
  std::vector<Packet> outputs;
  std::vector<double> weights;
  bool here = true;  ///< whether this rank has the outputs
};

/// The body of a step: `body(microbatch, slices)` returns the packed output of one microbatch. It
/// runs on pp_rank 0 only.
using StepBody = std::function<Packet(int microbatch, std::vector<Packet>& slices)>;

class SMP_API StepRunner {
 public:
  explicit StepRunner(StepOptions options);
  /// True where arguments are read: on pp_rank 0. @throws UsageError  no session runs
  static bool reads_arguments();
  StepResult run(std::vector<StepArgument> arguments, const StepBody& body);

 private:
  StepOptions options_;
  SeenCuts seen_;
};

template <class T>
Packet pack(const T& value) {
  Writer writer;
  writer.put(value);
  return std::move(writer).take();
}

/// Makes an argument again from its slice; values that cannot be taken apart are passed as they
/// are.
template <class T>
decltype(auto) unpack_argument(Packet& slice, T& original) {
  using Value = std::remove_cvref_t<T>;
  if constexpr (is_crossable_v<Value>) {
    Reader reader(slice);
    return reader.get<Value>();
  } else {
    return (original);
  }
}

/// True for types that have no rows themselves: pointers of all kinds, references, code, literals.
template <class T>
consteval bool stands_for_another() {
  if constexpr (std::is_array_v<T>) {
    return std::is_convertible_v<T, const char*>;
  } else {
    return !std::is_class_v<T> || std::is_constructible_v<bool, const T&> ||
           requires(const T& value) {
      value.get();
    };
  }
}

/// True for containers of what has no rows itself, and modules.
template <class T>
consteval bool holds_references() {
  if constexpr (std::is_base_of_v<torch::nn::Module, T>) {
    return true;
  } else if constexpr (requires { typename T::value_type; }) {
    using Value = typename T::value_type;
    return std::is_pointer_v<Value> || (std::is_class_v<Value> && stands_for_another<Value>());
  } else {
    return false;
  }
}

/// The number of entries of a container; nothing for a text, for references and for what is no
/// container.
template <class T>
std::optional<std::size_t> entries_of(const T& value) {
  constexpr bool counts = requires {
    { std::size(value) } -> std::convertible_to<std::size_t>;
  };
  if constexpr (counts && !std::is_convertible_v<const T&, std::string_view> &&
                !holds_references<T>()) {
    return static_cast<std::size_t>(std::size(value));
  } else {
    return std::nullopt;
  }
}

/// True for classes with a codec of the user's.
template <class T>
consteval bool has_own_codec() {
  return std::is_class_v<T> && !PlainBits<T> && !Composite<T> && !std::is_same_v<T, std::string> &&
         !std::is_same_v<T, at::Tensor> && !std::is_same_v<T, at::Scalar> &&
         !std::is_same_v<T, c10::Device>;
}

template <class T>
StepArgument take_apart(const T& argument) {
  if constexpr (is_crossable_v<T>) {
    Outline outline;
    Writer writer(outline);
    writer.put(argument);
    StepArgument parts{std::move(writer).take(), std::move(outline)};
    if constexpr (has_own_codec<T>()) {
      parts.undivided = &typeid(T);
      parts.entries = entries_of(argument);
    }
    return parts;
  } else if constexpr (stands_for_another<T>()) {
    return {};
  } else {
    return {.packet = {}, .undivided = &typeid(T), .entries = entries_of(argument)};
  }
}

/// Does the same for a step: what a codec throws must end the step on every rank.
template <class T>
StepArgument take_for_step(const T& argument) {
  if (!StepRunner::reads_arguments()) return {};
  try {
    return take_apart(argument);
  } catch (...) {
    return {.packet = {}, .undivided = &typeid(T), .problem = std::current_exception()};
  }
}

/// Collects the outputs of one component of the body's result.
template <class T>
StepOutput<T> collect(const StepResult& result, std::vector<T>&& values) {
  return StepOutput<T>(std::move(values), result.weights, result.here);
}

template <class Result>
struct Collect {
  static auto from(StepResult& result) {
    std::vector<Result> values;
    for (auto& packet : result.outputs) values.push_back(Reader(packet).get<Result>());
    return collect<Result>(result, std::move(values));
  }
};

/// Collects a tuple of results as a tuple of outputs: `auto [loss, logits] = train(x, y);`
template <class... Part>
struct Collect<std::tuple<Part...>> {
  static auto from(StepResult& result) {
    std::tuple<std::vector<Part>...> columns;
    for (auto& packet : result.outputs) {
      auto row = Reader(packet).get<std::tuple<Part...>>();
      [&]<std::size_t... I>(std::index_sequence<I...>) {
        (std::get<I>(columns).push_back(std::move(std::get<I>(row))), ...);
      }
      (std::index_sequence_for<Part...>());
    }
    return std::apply(
        [&](auto&... column) {
          return std::tuple<StepOutput<Part>...>(collect<Part>(result, std::move(column))...);
        },
        columns);
  }
};

template <class First, class Second>
struct Collect<std::pair<First, Second>> {
  static auto from(StepResult& result) { return Collect<std::tuple<First, Second>>::from(result); }
};

}  // namespace detail

/// A step, made by smp::step(): call it on every rank, as often and in the same order as other
/// steps. Threads: the rank's. Bodies run on fibers of that thread with stacks of
/// Config::fiber_stack_bytes; they interleave at calls of routed modules and in model.backward(),
/// never elsewhere. So a variable that the body captures by reference, or a member of a `mutable`
/// body, may be changed by another microbatch there: what a body writes before such a call and
/// reads after it belongs into a local variable. Sums and lists that bodies only add to are
/// complete after the step, in the order in which the bodies came there. Where a module keeps
/// members that others read (smp/state.h), or with active_microbatches = 1 under "interleaved",
/// bodies run one after the other, and captured variables are as in one process.
template <class Body>
class Step {
 public:
  Step(Body body, StepOptions options) : body_(std::move(body)), runner_(std::move(options)) {}

  /// Runs `body` once per microbatch, on slices of the arguments (smp::step() says of what). All
  /// ranks call it. Arguments are read on pp_rank 0 only; others may pass undefined tensors.
  /// Returns StepOutput of what the body returns (a tuple of them for a tuple or pair), on every pp
  /// rank. A batch whose rows do not divide evenly gives the first microbatches one row more.
  /// @throws what the body or a module threw, on every rank: the original where it failed the step,
  ///         RemoteError with its text elsewhere. `.grad` is then half done; the next step works.
  /// @throws UsageError     arguments that do not fit each other or the options.
  /// @throws PeerLostError  a rank left, or nothing happened for abort_seconds.
  template <class... Arguments>
  auto operator()(Arguments&&... arguments) {
    using Result = std::remove_cvref_t<std::invoke_result_t<
        Body&, decltype(detail::unpack_argument(std::declval<Packet&>(), arguments))...>>;
    std::vector<detail::StepArgument> parts;
    (parts.push_back(detail::take_for_step<std::remove_cvref_t<Arguments>>(arguments)), ...);
    auto result = runner_.run(std::move(parts), [&](int, std::vector<Packet>& slices) {
      return call<Result>(slices, std::index_sequence_for<Arguments...>(), arguments...);
    });
    if constexpr (!std::is_void_v<Result>) return detail::Collect<Result>::from(result);
  }

 private:
  template <class Result, std::size_t... I, class... Arguments>
  Packet call(std::vector<Packet>& slices, std::index_sequence<I...>, Arguments&... arguments) {
    static_cast<void>(slices);
    if constexpr (std::is_void_v<Result>) {
      body_(detail::unpack_argument(slices[I], arguments)...);
      return {};
    } else {
      static_assert(is_crossable_v<Result>,
                    "smp: what the body of a step returns reaches every rank, so its type must be "
                    "one that smp/codec.h can take apart");
      return detail::pack<Result>(body_(detail::unpack_argument(slices[I], arguments)...));
    }
  }

  Body body_;
  detail::StepRunner runner_;
};

/// Makes a step of `body`, which does what one iteration does up to the optimizer: forward, loss,
/// `model.backward(loss)`.
///
///     auto train = smp::step([&](torch::Tensor x, torch::Tensor y) {
///       auto loss = torch::mse_loss(model(x), y);
///       model.backward(loss);
///       return loss;
///     });
///     double mean = train(x, y).reduce_mean().item<double>();
///
/// How a call divides its arguments (docs/what_is_equal.md has the table). The batch has as many
/// rows as the tensors that are no entries of lists; all of them must have as many, along axis 0 or
/// that of StepOptions::split_axes. Structs, pairs, tuples, optionals and variants are what they
/// hold. Then:
///
/// - A tensor is split along its axis.
/// - A list (std::vector) without tensors is split if it has an entry a row: each microbatch gets
///   the entries of its rows. Another one is whole, and lists that are its entries are treated so,
///   all alike.
/// - A list with tensors is split like that if its tensors do not have the rows, else each of its
///   tensors is. Where both may be meant it is refused, until split_entries, split_axes or
///   non_split says which, or an earlier call told. So it is where neither fits.
/// - Entries of maps and arrays are split like arguments. A map or array without tensors and split
///   lists is whole; if it has as many entries as there are rows, it is refused until non_split
///   says so, or an earlier call with other numbers told.
/// - A value of a type whose Codec has slice() is what that says (smp/codec.h), wherever it stands;
///   a list with such values is whole, with each entry sliced, until split_entries names it.
/// - Numbers, texts, enums, pointers, references and functions are whole. So are types that cannot
///   be taken apart (smp/codec.h), with a warning; their containers (c10::List, std::deque, C
///   arrays) are refused as maps are.
///
/// Where entries of lists are the only tensors, the batch has as many rows as fit each of these
/// lists; one that fits two numbers is refused as above. Tensors of several dtypes or numbers of
/// axes are no rows of one batch. Without any tensor nothing is split, and a warning names the
/// lists. A list that was split in an earlier call and has no entry a row now is refused.
/// What became of each argument is logged once, and stands in the report of a run (smp/run_log.h).
template <class Body>
Step<std::decay_t<Body>> step(Body&& body, StepOptions options = {}) {
  return {std::forward<Body>(body), std::move(options)};
}

}  // namespace smp
