// trial/graph/call_recorder.h: from "a call began, a call ended" to the calls of a trace (paper
// App. C.1).
#pragma once

#include <cstdint>
#include <vector>

#include "partition/model/module_tree.h"
#include "simulate/trace.h"

namespace smp::partitioning {

/// The reading of a clock: seconds since some beginning, by device.
using Reading = std::vector<simulate::IntervalTimes>;

/// Records one run of a step body that calls several models. The time between two events
/// counts for the innermost call; outside of calls, for the body, which every model sees as its
/// own.
class CallRecorder {
 public:
  struct Call {
    int model = -1;  ///< index of the model; -1: the body
    int number = -1;
    bool operator==(const Call&) const = default;
  };

  /// @param trees  the trees of the models; they must outlive this object
  /// @param now    a reading of the caller's clock; all later readings must be of the same clock
  CallRecorder(std::vector<const ModuleTree*> trees, Reading now);

  void begin(int model, int module, std::int64_t input_bytes, const Reading& now);
  void end(std::int64_t output_bytes, const Reading& now);
  /// Notes a product that the innermost call has computed.
  void note_product(double seconds, std::int64_t bytes);
  /// Notes that the body calls backward on the result of `call`.
  void note_loss(const Call& call);
  /// Notes that the body returned.
  void finish(const Reading& now);

  /// The innermost call that has not ended.
  Call current() const;
  /// The index of the current call's module in the tree of its model; 0, the model itself, for the
  /// body.
  int current_module() const;
  simulate::TracedCall& at(const Call& call) { return traces_[call.model].calls[call.number]; }

  /// One trace per model, with the times of the first device; foreign uses and activations are left
  /// for others to fill in.
  std::vector<simulate::Trace>& traces() { return traces_; }
  /// The times on device number `device` of the readings, by compute interval of the trace of
  /// `model` (Trace::index_of).
  std::vector<simulate::IntervalTimes> times_on(int model, std::size_t device) const;

 private:
  struct Products {
    double seconds = 0;
    std::int64_t bytes = 0;
  };
  struct Frame {
    Call call;
    Reading pending;  // computed since its previous own call
    Products products = {};
  };
  void advance(const Reading& now);
  Reading& pending(int model);
  Products& products(int model);
  void add_intervals(int model);
  /// Moves the pending times and products to the interval `id` of `model`.
  void settle(int model, const simulate::IntervalId& id, Reading& pending, Products& products);

  std::vector<const ModuleTree*> trees_;
  std::vector<simulate::Trace> traces_;
  std::vector<std::vector<Reading>> times_;  // by model, by interval
  std::vector<Reading> body_pending_;        // by model
  std::vector<Products> body_products_;      // likewise
  std::vector<Frame> frames_;
  Reading last_;
};

}  // namespace smp::partitioning
