// fuzz/program.h: a random training program as plain data. The same description is built with
// unrouted modules for plain LibTorch and with routed ones for this library (fuzz/nodes.h).
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace smp::fuzz {

inline constexpr int kRegisters = 5;  ///< 0: first argument; 1: second, or the first
inline constexpr int kWidth = 4;      ///< every register is [rows, kWidth], float64
inline constexpr int kTokens = 7;     ///< of the vocabulary

/// What one instruction of a module's forward does. `to`, `a`, `b` are registers, `which` is the
/// number of a variant or of a module, `value` a number; `inner` and `other` are blocks.
enum class Op {
  kUnary,            ///< to = variant(a)
  kBinary,           ///< to = a variant b
  kFreshInPlace,     ///< to = a.clone(), then written in place
  kInPlace,          ///< `to` written in place, whatever it is
  kView,             ///< to = a view of a, of the same shape
  kWeight,           ///< to = a @ own weight
  kTokens,           ///< to = a + integers of the microbatch
  kCall,             ///< to, also = module `which`(a, b or nothing, tokens)
  kIfData,           ///< if (a.sum() > value) inner else other
  kIfMicrobatch,     ///< if (microbatch % 2) inner else other
  kLoop,             ///< inner, as often as the tokens say
  kDetach,           ///< to = a.detach()
  kNoGrad,           ///< inner without recording
  kHook,             ///< gradient of a (variant 0: of a new a * 1) *= value
  kThrow,            ///< if (a.sum() > value) throw
  kTry,              ///< inner; an exception there runs other
  kReadWeight,       ///< to = a * mean of the weight of module `which`, with gradient
  kReadWeightValue,  ///< to = a + mean of that weight, detached
  kIfWeight,         ///< if (norm of that weight > value) inner else other
  kReadTable,        ///< to = a + constant float buffer of module `which`
  kReadCount,        ///< to = a * by an integer buffer of module `which`
  kReadAverage,      ///< to = a + float buffer of module `which` that forward updates
  kCountBuffer,      ///< own integer buffer += 1
  kUpdateAverage,    ///< own float buffer = moving average of a
  kReturnBuffer,     ///< to = own float buffer, expanded over the rows
  kWriteScratch,     ///< own member = a, detached or (variant 1) with its history
  kReadScratch,      ///< to = a + member of module `which`, if it is set
  kCountMember,      ///< own member += 1
  kReadCounter,      ///< to = a * by the counter of module `which`
  kKeep,             ///< append a to a list that is a member
  kTakeKept,         ///< to = a + all that own list holds, which is cleared
  kWriteAuxiliary,   ///< own member = an auxiliary loss of a
  kReadAuxiliary,    ///< to = a + auxiliary loss of module `which`
  kToggle,           ///< module `which`: train() if value > 0, else eval()
  kFreeze,           ///< weight of module `which`: requires_grad_(value > 0)
  kSlope,            ///< to = module `which`(a); plus value * gradient of its squares by a
  kAddGradient,      ///< to = a; adds to the gradient of own weight by variant, see Addition
  kEnd,              ///< number of operations
};

/// How kAddGradient adds, once a microbatch, the gradient of value * sum(weight^3) times what the
/// microbatch counts.
enum Addition {
  kByFunction,     ///< a custom function returns it beside that of a
  kByHook,         ///< a hook of weight * 1, which is added to a
  kByOwnBackward,  ///< backward() of LibTorch's own engine, in forward
  kAdditions,
};

struct Instruction {
  Op op = Op::kUnary;
  int to = 0, a = 0, b = -1;  ///< b = -1: not given
  int also = -1;              ///< register of a call's second output, or -1
  int which = 0;
  double value = 0;
  std::vector<Instruction> inner, other;
};
using Code = std::vector<Instruction>;

enum class Kind { kNode, kLinear, kLayerNorm, kBatchNorm, kEmbedding, kDropout, kSequential, kGru };

struct Module {
  Kind kind = Kind::kNode;
  bool routed = true;
  int parent = -1;
  std::string path;  ///< "" for the root
  std::vector<int> children;
  Code code;                  ///< of a kNode
  std::vector<int> outputs;   ///< registers that forward returns
  int pin = -1;               ///< pp_rank it is placed on by hand, or -1
  bool checkpointed = false;  ///< its calls are computed again in the backward
};

/// What the step's body does with the models.
struct Body {
  int models = 1;           ///< all of the same description, with other weights
  int second_from = 0;      ///< the step from which the second is used
  bool chained = false;     ///< the second gets the first's output
  int backwards = 1;        ///< each of another loss; all but the last keep the graph
  bool as_list = false;     ///< all losses in one backward()
  bool gradient = false;    ///< backward(output, gradient) instead of a number
  bool catches = false;     ///< an exception of the model is caught, and the body goes on without
  bool calls_part = false;  ///< a child of the root is called by the body as well
  bool returns_buffer = false;      ///< the root's buffer is an output of the step
  bool backward_of_other = false;   ///< the other model's backward() is called
  bool argument_gradients = false;  ///< the step's first argument is a leaf that needs a gradient
  int penalties = 0;       ///< the first loss has those of so many derivatives by the input, of one
                           ///< another
  bool row_lists = false;  ///< the step gets lists with an entry a row (fuzz/row_lists.h)
  int loss_rank = -1;      ///< where a module lives that computes the losses; -1: the body does
};

struct Program {
  std::uint64_t seed = 0;
  std::vector<Module> modules;  ///< parents before children; 0 is the root
  Body body;
  int ranks = 2, microbatches = 2, steps = 2, rows = 4;
  int replicas = 1;                      ///< pipelines of `ranks` stages, all on the same samples
  std::string schedule = "interleaved";  ///< the key pipeline
  bool planner = false;                  ///< the library decides about what is not pinned
  bool trial = true;                     ///< the planner runs the body once
  bool evaluates = false;                ///< a step of evaluation comes first
  bool static_mode = false;              ///< steps are replayed, once enough are recorded
  bool fast_mode = false;                ///< with static_mode only
  bool delayed = false;                  ///< models are built under delay_param_initialization
  double mean_delay = 1e-6;              ///< of a message, in simulated seconds
  int steps_by_itself = -1;  ///< a user_steps::UserStep of an own optimizer; -1: SGD with momentum
  bool groups = false;       ///< the optimizer has two groups of parameters
  bool joins = false;        ///< of which the second joins it after the first step
  bool loads = false;        ///< values are loaded and written before the first step
  bool reloads = false;      ///< then all goes into an optimizer that has them in another order
};

/// A program that depends on the seed only. `without`: features that it must not have.
Program generate(std::uint64_t seed, const std::set<std::string>& without = {});

/// A feature: hooks on whatever a register holds, arguments too.
inline constexpr const char* kHookOnAnything = "hook on anything";
/// A feature: calls of modules that are not routed and belong to another one.
inline constexpr const char* kPlainStranger = "calls a plain stranger";

/// Names of what the program uses: operations and "two models", "planner", ...
std::set<std::string> features(const Program& program);
std::string name_of(Op op);
/// Whether `which` is the number of a module.
bool names_module(Op op);
/// Whether it runs `inner`.
bool has_block(Op op);
/// Whether it runs `inner` or `other`.
bool has_branches(Op op);

/// The program as a person would write it.
std::string pseudo_code(const Program& program);

}  // namespace smp::fuzz
