// precision/step_loop.h: an optimizer's step over neighbouring elements, in one pass over memory.
#pragma once

#include <cstdint>
#include <vector>

namespace smp::precision {

/// What the elements of a tensor are.
enum class Number : std::uint8_t { kFloat, kBFloat16, kHalf };

/// The neighbours that one call steps, each pointer at the first of them.
struct StepTensors {
  void* parameter = nullptr;
  Number type = Number::kFloat;
  const void* gradient = nullptr;
  Number gradient_type = Number::kFloat;
  float* master = nullptr;  ///< of 16 bits that are not rounded by chance; or nullptr
  float* first = nullptr;   ///< the optimizer's state: mean of gradients, or momentum
  float* second = nullptr;  ///< mean of squared gradients
};

/// How a new value becomes a parameter of 16 bits: to nearest, or by chance.
struct StepRounding {
  bool by_chance = false;  ///< for Number::kBFloat16
  std::uint64_t key = 0;   ///< of rounding_key()
  std::int64_t first = 0;  ///< index of the first neighbour in the whole tensor
};

/// LibTorch's Adam and AdamW: factors of one step.
struct AdamFactors {
  float decay = 1;             ///< of the parameter (AdamW)
  float penalty = 0;           ///< of the parameter in the gradient (Adam)
  float beta1, take1;          ///< mean = mean * beta1 + gradient * take1
  float beta2, take2;          ///< the same of squares
  float root2, inverse_root2;  ///< root of the bias correction of squares, and one over it
  float eps;
  float step;  ///< minus the rate over the bias correction of the mean
};

/// LibTorch's SGD.
struct SgdFactors {
  float penalty = 0;   ///< of the parameter in the gradient
  float momentum = 0;  ///< 0: there is no state
  float take = 1;      ///< momentum = momentum * factor + gradient * take
  bool fresh = false;  ///< the momentum becomes the gradient
  bool nesterov = false;
  float step;  ///< minus the rate
};

/// A loop over whole blocks of the whole tensor: `count` and the index of the first neighbour are
/// multiples of kBlock. Copies of what it is told: nothing that it writes overlaps them.
template <class Factors>
using BlockLoop = void (*)(StepTensors, std::int64_t count, StepRounding, Factors);

/// A gradient becomes the parameter, quiet where it is NaN: what rounding alone is.
struct NoFactors {};

/// The loops for processors of one kind.
struct BlockLoops {
  const char* name;
  BlockLoop<AdamFactors> adam;
  BlockLoop<SgdFactors> sgd;
  BlockLoop<NoFactors> round;
};

/// Each to be called on a processor of its kind only.
BlockLoops portable_loops();
#if defined(__x86_64__)
BlockLoops avx2_loops();
BlockLoops avx512_loops();
#endif

/// Steps of any number of neighbours by the loops for processors of one kind. All give the same
/// bits: those of LibTorch's operators on processors that have fused multiply-add, where LibTorch
/// uses it. By chance, Adam multiplies by `inverse_root2` instead of dividing.
class StepLoops {
 public:
  explicit StepLoops(const BlockLoops& loops) : loops_(loops) {}

  const char* name() const noexcept { return loops_.name; }
  void step(const StepTensors& tensors, std::int64_t count, const StepRounding& rounding,
            const AdamFactors& factors) const;
  void step(const StepTensors& tensors, std::int64_t count, const StepRounding& rounding,
            const SgdFactors& factors) const;
  /// Rounds float32 to bfloat16 by chance.
  void round(const float* from, std::uint16_t* to, std::int64_t count,
             const StepRounding& rounding) const;

 private:
  BlockLoops loops_;
};

/// Those that this processor runs, the fastest first.
const std::vector<StepLoops>& step_loops();

/// The tensors from the neighbour number `by` on.
StepTensors moved(StepTensors tensors, std::int64_t by);

}  // namespace smp::precision
