// smp/recompute/activation_checkpointing.h: activations that are computed again instead of held
// (Chen et al. 2016, arXiv 1604.06174; paper App. H.2).
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "smp/codec.h"
#include "smp/detail/call.h"
#include "smp/detail/export.h"

namespace smp {

class DistributedModelBase;

/// What a checkpointed call keeps beside its arguments.
enum class KeepPolicy : std::uint8_t {
  kNothing,
  /// What products return: matrix products, convolutions and attention. They take most of the time
  /// of a recomputation, and a part of the memory.
  kProducts,
};
inline constexpr KeepPolicy kProducts = KeepPolicy::kProducts;

struct CheckpointOptions {
  /// Whether code that draws random numbers draws the same ones again. Modules in steps always do,
  /// by keys; others by a copy of the generator's state (5 KB a call).
  bool preserve_rng_state = true;
  /// How the children of an smp::nn::Sequential are grouped into calls that are computed again as
  /// one: "each" alone, "contiguous": consecutive ones that run on one stage together, "group_x": x
  /// at a time (x a number from 1), or fewer where a stage ends. A larger group keeps fewer
  /// tensors, and computes more of them at once. "" is the whole module, as for other modules.
  std::string strategy = {};
  KeepPolicy keep = KeepPolicy::kNothing;
};

/// Has the calls of `module` keep their arguments only: what operators in it save for the backward
/// is dropped after the forward, and computed again, once, when the backward comes there. Gradients
/// and results have the same bits as without. What other ranks gave to it, from modules that it
/// calls there or by collectives of sliced layers, is kept and not asked for again; modules of it
/// on other ranks recompute their own part. Calls that are nested in one another are computed again
/// together. In evaluation without gradients nothing changes.
///
/// Every rank calls it alike, before or after the model is placed, between steps.
/// @throws UnsupportedError  neither the module nor anything in it is routed, or a call of it
/// cannot
///                           be repeated: an argument or a result has no Codec.
SMP_API void set_activation_checkpointing(torch::nn::Module& module,
                                          const CheckpointOptions& options = {});
template <class Contained>
void set_activation_checkpointing(const torch::nn::ModuleHolder<Contained>& module,
                                  const CheckpointOptions& options = {}) {
  set_activation_checkpointing(static_cast<torch::nn::Module&>(*module.ptr()), options);
}
/// Does so for the module of `model` at `module_path`, dotted; empty: the model itself.
/// @throws UsageError  there is no such module; names the nearest.
SMP_API void set_activation_checkpointing(DistributedModelBase& model,
                                          const std::string& module_path,
                                          const CheckpointOptions& options = {});
/// Takes the mark away from `module` and all in it.
SMP_API void unset_activation_checkpointing(torch::nn::Module& module);

namespace detail {

/// Runs `code` as a region: it takes its arguments out of a packet and returns a packed result.
SMP_API Packet run_recomputed(Packet&& arguments, std::function<Packet(Packet&)> code,
                              const CheckpointOptions& options);

}  // namespace detail

/// Returns code(arguments...), of which the backward keeps the arguments alone, as
/// torch.utils.checkpoint does; the code runs again when the backward comes there. Arguments and
/// result must have a Codec (tensors, containers and structs of them, numbers, texts). Tensors that
/// the code captures instead must not be changed until the backward. Running statistics that the
/// code updates are updated twice; checkpoint the module instead.
template <class Code, class... Arguments>
auto checkpoint(const CheckpointOptions& options, Code code, const Arguments&... arguments) {
  using Result = std::decay_t<std::invoke_result_t<Code&, Arguments...>>;
  Writer given;
  (given.put(arguments), ...);
  auto answer = detail::run_recomputed(
      std::move(given).take(),
      [code = std::move(code)](Packet& packet) mutable {
        Reader in(packet);
        std::tuple<Arguments...> taken{in.get<Arguments>()...};
        in.finish();
        Writer out;
        out.put<Result>(std::apply(code, std::move(taken)));
        return std::move(out).take();
      },
      options);
  Reader in(answer);
  auto result = in.get<Result>();
  in.finish();
  return result;
}
template <class Code, class... Arguments>
requires(!std::is_same_v<std::decay_t<Code>, CheckpointOptions>) auto checkpoint(
    Code code, const Arguments&... arguments) {
  return checkpoint(CheckpointOptions{}, std::move(code), arguments...);
}

}  // namespace smp
