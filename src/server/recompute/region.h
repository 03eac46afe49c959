// server/recompute/region.h: one call whose activations are computed again.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "module/kept_results.h"
#include "server/modules/weight_watch.h"
#include "server/recompute/ahead.h"
#include "server/recompute/kept_products.h"
#include "server/recompute/offload.h"
#include "server/running/execution_scope.h"
#include "server/running/saved_tensors.h"

namespace smp::server {

/// The inputs of a call, and a place for each tensor that its nodes save. The places are empty
/// until a node asks for its tensor: then the call runs again and fills those that are still
/// wanted. Lives as long as nodes hold places. Threads: the rank's.
class Region final : public std::enable_shared_from_this<Region>,
                     public SavedTensorTaker,
                     public module::KeptResults,
                     public AheadCall {
 public:
  using Run = std::function<void(std::vector<at::Tensor>&& inputs)>;

  /// @param name    for messages, as "rank 1: module 'encoder.0'"
  /// @param inputs  of the call, with their histories
  /// @param watched  parameters and buffers, which must be the same when the call runs again
  /// @param weights  their memory
  Region(std::string name, const std::vector<at::Tensor>& inputs, WeightWatch watched,
         std::vector<const void*> weights = {});

  /// The region in whose call the running fiber is; nullptr: none.
  static Region* current() noexcept;

  /// Runs the call for the first time. @throws UnsupportedError  it has written a watched tensor.
  void record(const std::function<void()>& first);
  /// Also keeps what products return. Before the first run.
  void keep_products() { products_.emplace(name_); }
  /// Sets what runs the call again with new inputs.
  void set_rerun(Run rerun) { rerun_ = std::move(rerun); }

  // SavedTensorTaker
  std::unique_ptr<torch::autograd::SavedVariableHooks> next() override;
  // module::KeptResults
  bool replays() const noexcept override { return replays_; }
  void keep(const Packet& result) override;
  void keep_thrown(std::exception_ptr thrown) override;
  Packet take() override;
  // AheadCall
  void compute_ahead() noexcept override;
  void let_go() noexcept override;
  std::int64_t bytes_ahead() const noexcept override;

 private:
  friend class SavedPlace;
  friend class RefilledPlace;

  /// One tensor that a node saves.
  struct Place {
    std::vector<std::int64_t> sizes;
    at::ScalarType dtype;
    at::Tensor value;           // while it is there
    std::uint32_t version = 0;  // of the value, when it was saved
    bool wanted = true;         // the node is not done with it
    bool stays = false;         // its memory is there anyway
  };
  /// Tensors from outside as the call found them. Those that share memory share that of a copy.
  class Given {
   public:
    explicit Given(const std::vector<at::Tensor>& tensors);
    /// Returns new copies, which need gradients where the first ones did. Not while they are away.
    [[nodiscard]] std::vector<at::Tensor> again() const;
    /// Sends what is on the device of `offload` to the host, if there is room.
    void leave(const std::shared_ptr<Offload>& offload, const Offload::Place& place);
    /// Undoes leave().
    void come_back();
    void clear() noexcept {
      all_.clear();
      away_.reset();
    }

   private:
    struct One {
      at::Tensor value;  // a copy on write; may be undefined
      std::size_t base;  // the first tensor with the same memory
      bool requires_grad;
    };
    /// A tensor in memory that is away.
    struct Outline {
      std::size_t index;   // of the tensor
      std::size_t memory;  // of which it is a part: which one of the parcel's
      at::TensorOptions options;
      std::vector<std::int64_t> sizes, strides;
      std::int64_t offset;
    };
    std::vector<One> all_;
    std::vector<Outline> outlines_;
    std::unique_ptr<Offload::Parcel> away_;
  };
  struct Result {
    std::string bytes;
    Given tensors;
    std::exception_ptr thrown;  // instead of a result
  };

  /// Its turn to be computed before its backward asks.
  struct Early {
    std::shared_ptr<RecomputeAhead> queue;
    RecomputeAhead::Place place;
    ScopeServices& services;
    ExecutionIdentity identity;  // of the execution that has called
    std::uint64_t base_key;
    bool begun = false;                   // its backward has
    bool computed = false;                // and its values are there
    std::exception_ptr thrown = nullptr;  // instead
  };

  std::size_t add(const at::Tensor& tensor);
  void refill(const at::Tensor& tensor);
  at::Tensor value_of(std::size_t index);
  void forget(std::size_t index) noexcept;
  void offload();
  void queue_early();
  void begin_backward();
  void run_again();
  void run(bool again, c10::function_ref<void()> code);
  void require_unchanged() const;
  [[noreturn]] void refuse_other(std::size_t index, const std::string& what) const;

  const std::string name_;
  Given inputs_;
  WeightWatch watched_;
  std::vector<const void*> stays_;  // memory of inputs and weights; until the first run is over
  Run rerun_;
  std::vector<Place> places_;
  std::vector<Result> results_;
  std::optional<KeptProducts> products_;  // unless all are computed again
  std::optional<Early> early_;            // in a step
  bool recorded_ = false;                 // the first run is over
  std::size_t wanted_ = 0;                // places that are
  bool replays_ = false;
  std::size_t next_place_ = 0;   // of the second run
  std::size_t last_wanted_ = 0;  // likewise
  std::size_t next_result_ = 0;  // likewise
};

}  // namespace smp::server
