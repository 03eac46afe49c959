// deferred/recipe.h: how a tensor comes about, as data: the operators that make it and those that
// make their operands. Values are computed from it later, for one tensor at a time, in any order.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deferred/random_stream.h"

namespace smp::deferred {

struct Operation;

/// Bytes that come from elsewhere (deferred/later_values.h); no storage as long as they are not
/// here.
struct GivenBytes {
  at::Storage storage;
};

/// The bytes of a storage at one moment: a result of `maker`, bytes that are given, or memory
/// nobody has written yet.
struct Content {
  std::size_t bytes = 0;
  std::shared_ptr<Operation> maker;
  std::size_t result = 0;  ///< index in the maker's results
  std::shared_ptr<GivenBytes> given = nullptr;
};
using ContentPtr = std::shared_ptr<const Content>;

/// The view of a tensor onto its storage, without the storage.
struct Geometry {
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t offset = 0;
  at::ScalarType type = at::kFloat;
  bool conjugate = false;
  bool negative = false;

  static Geometry of(const at::Tensor& tensor);
  /// Returns the tensor of this geometry on `storage`.
  at::Tensor on(const at::Storage& storage) const;
};

/// An operand that has no values yet.
struct Operand {
  ContentPtr content;
  Geometry geometry;
  bool written = false;
  bool requires_grad = false;  ///< while autograd follows: kernels depend on it
};

/// A storage that an operator leaves behind: that of an operand it wrote, or of a tensor it
/// returned.
struct Result {
  bool of_operand = false;
  std::size_t index = 0;  ///< among the operands, or the tensors returned
  Geometry geometry;      ///< of a returned tensor, in the recipe's canonical form
  std::size_t bytes = 0;
};

/// The random numbers of an operator: a point of a generator's stream, or a stream of its own.
struct RandomSource {
  std::optional<RandomPosition> position;
  std::optional<std::uint64_t> count;  ///< numbers it draws, if known
  std::uint64_t key = 0;               ///< the seed of its own stream
  bool named = false;                  ///< key is final: by a parameter's path, or it was read
};

/// One run of an operator. Its delayed operands stand in `arguments` as bare meta tensors.
struct Operation {
  explicit Operation(c10::OperatorHandle handle) : op(std::move(handle)) {}
  /// Frees the operations it depends on without recursion, as thousands may have filled a buffer.
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  c10::OperatorHandle op;
  torch::jit::Stack arguments;
  std::vector<Operand> operands;
  std::vector<Result> results;
  std::optional<RandomSource> random;
  at::ScalarType default_type = at::kFloat;
  std::size_t depth = 0;  ///< greater than that of every operation it depends on
};

/// Returns every operation that `content` depends on, each after those it needs itself.
std::vector<Operation*> operations_of(const ContentPtr& content);

/// True if all bytes are here that `content` depends on and that come from elsewhere.
bool is_complete(const ContentPtr& content);

/// Computes the bytes of contents. Storages that are not needed any more are freed at once, so that
/// at most the operands of one operator live beside the result.
class Evaluation {
 public:
  explicit Evaluation(RandomCursor& cursor) : cursor_(cursor) {}

  /// @throws UsageError  not is_complete(), or an operator failed on the values that it got.
  at::Storage run(const ContentPtr& content);
  /// Runs `operation` alone, after the operations it needs for its draws, and drops its results.
  /// Bytes that are not here yet are taken for zeros, since draws seldom depend on values.
  void run_for_its_draws(const std::shared_ptr<Operation>& operation);

 private:
  RandomCursor& cursor_;
};

}  // namespace smp::deferred
