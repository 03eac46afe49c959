// tp/group/tensor_parallel.h: the ranks that share modules with this one, and where in the program
// they meet (paper §5.2).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/fiber_local.h"
#include "d2d/collectives/communicator.h"
#include "module/call_places.h"
#include "tp/group/exchange.h"
#include "tp/group/layout.h"

namespace smp::tp {

/// The place of one collective of a module and of its dual in backward. Each has a lane of its own,
/// named after the place in the program and not after the order in which fibers come, so that
/// microbatches need no common order on the ranks of a group.
class Meeting {
 public:
  /// @param place  nullopt: outside of steps, where all ranks of the group do the same in one order
  Meeting(const d2d::Communicator& ranks, const char* what,
          const std::optional<module::CallPlace>& place);
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  d2d::Communicator forward() const;
  d2d::Communicator backward() const;
  /// The number of the step in which it is (module::CallPlace::step); 0 outside of steps.
  std::uint64_t step() const noexcept { return place_.step; }
  /// The text for messages, as in "rank 1, module 'net.0', microbatch 3:
  /// smp::reduce_scatter_for_tp".
  const std::string& text() const noexcept { return text_; }

 private:
  const d2d::Communicator ranks_;
  const module::CallPlace place_;
  const std::string text_;
  const std::string text_of_backward_;
};

/// This rank's part in its TP_GROUP. Threads: the rank's.
class TensorParallel {
 public:
  /// @param ranks   the TP_GROUP, in order of tp_rank
  /// @param places  outlive it
  /// @param layout     of transformer layers that name none
  /// @param prescaled  all ranks are given the same batch
  TensorParallel(d2d::Communicator ranks, module::CallPlaces& places,
                 Layout layout = Layout::kMemory, bool prescaled = false)
      : ranks_(std::move(ranks)), places_(places), layout_(layout), prescaled_(prescaled) {}

  /// Returns the object of the running fiber. @throws UsageError  no session runs.
  static TensorParallel& current();
  static const base::FiberLocal<TensorParallel>& local();

  int rank() const noexcept { return ranks_.rank(); }
  int size() const noexcept { return size_ > 0 ? size_ : ranks_.size(); }
  const d2d::Communicator& ranks() const noexcept { return ranks_; }
  Layout layout() const noexcept { return layout_; }
  /// True if all ranks have the same samples, and so compute alike outside of distributed modules;
  /// else each has its own.
  bool same_batch() const noexcept { return prescaled_ && size() > 1; }

  /// True if the others do not take part: while a step is tried in advance, or only planned.
  /// Collectives then give what they would if every rank had this one's tensor, so that shapes are
  /// right.
  bool alone() const noexcept { return alone_; }
  void set_alone(bool alone) noexcept { alone_ = alone; }
  /// Is told what each rank would send in a collective, and in its dual in backward (nothing, if it
  /// would have none), while they are not carried out; nullptr: nobody is.
  using TrafficListener = std::function<void(const Traffic& forward, const Traffic& backward)>;
  void set_traffic_listener(TrafficListener listener) { listener_ = std::move(listener); }
  const TrafficListener& traffic_listener() const noexcept { return listener_; }
  /// Makes this rank play the first of `size` ranks that do not exist.
  void pretend(int size) noexcept {
    size_ = size;
    alone_ = true;
  }

  /// Returns the next collective of the running code, another one at each call.
  /// @param what  lasts as long as the process
  std::shared_ptr<const Meeting> meet(const char* what);
  /// Checks that `meeting` is one of the step that runs. @throws UsageError  it is not.
  void require_current(const Meeting& meeting);

 private:
  const d2d::Communicator ranks_;
  module::CallPlaces& places_;
  const Layout layout_;
  const bool prescaled_;
  int size_ = 0;  // 0: that of ranks_
  bool alone_ = false;
  TrafficListener listener_;
};

}  // namespace smp::tp
