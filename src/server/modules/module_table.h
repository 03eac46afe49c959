// server/modules/module_table.h: the routed modules of a session by number, and what the server
// needs to know of each again and again, found out once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/modules/buffer_watch.h"
#include "server/modules/member_watch.h"
#include "server/modules/statistics_watch.h"
#include "server/modules/weight_watch.h"
#include "server/protocol/ids.h"
#include "smp/detail/call.h"

namespace smp::server {

/// RoutedBase::Place::index of a module whose model waits for a step that uses it.
inline constexpr int kWaitsForPlace = -2;

/// The state that a module keeps from one call to the next, as its plan says.
enum class KeptState : std::uint8_t {
  kNone,     ///< nothing was seen: its members are watched
  kOrdered,  ///< only its own calls read it: microbatches enter in order
  kShared,   ///< others read it: steps run one microbatch at a time
};

/// Threads: the rank's. Paths stay where they are as long as the table lives, so that reports and
/// graphs that outlive their model can name a module.
class ModuleTable {
 public:
  struct Entry {
    RoutedBase* module = nullptr;  ///< nullptr: its model is gone
    std::string path;
    std::uint64_t random_key = 0;  ///< of model and path
    bool draws_random = false;
    const char* lasting_path = "";  ///< `path`, as long as the process lives
    mutable bool in_order = false;  ///< a microbatch enters it after all lower ones are through
    mutable BufferWatch buffers;    ///< likewise, of its own buffers
    mutable WeightWatch weights;    ///< its own, once microbatches enter it in order
    mutable MemberWatch watch;      ///< on where nothing is known of its members
    mutable MemberWatch copy;       ///< of a module of another rank: what this one has of it
    /// Watches the normalisation layers that run with the module: itself, and those below it that
    /// are not routed.
    StatisticsWatch statistics;

    /// True if microbatches enter it in order, though other ranks may not know yet.
    bool keeps_order() const noexcept { return in_order || buffers.keeps_state(); }
  };

  /// Adds the routed modules of one model, placed already (RoutedBase::smp_place), and numbers
  /// them.
  /// @param state  what the plan says about members and buffers of each module; empty: nothing
  void attach_model(const std::vector<RoutedBase*>& modules,
                    const std::vector<KeptState>& state = {});
  /// Removes the modules of a model that ends; they may have ended already. Their numbers stay
  /// taken.
  void detach_model(const std::vector<RoutedBase*>& modules) noexcept;
  /// Adds the normalisation layers of the model `root` that belong to no routed module: they run
  /// with the step body.
  /// @param root  the model that owns them
  void attach_body(torch::nn::Module& root);
  void detach_body(const torch::nn::Module& root) noexcept;

  std::size_t size() const noexcept { return entries_.size(); }
  /// Begins a step on `rank`, which is this one: the buffers, and its copies of other ranks'
  /// modules, count as unchanged now.
  void begin_step(PpRank rank);
  /// Returns a module of `rank` whose running statistics were written since begin_step() by other
  /// code than its own calls, which work on copies until the step ends; nullptr if there is none.
  [[nodiscard]] const Entry* with_written_statistics(PpRank rank) const;
  /// Notes that some module keeps state that others may read: the plan says so, or a watch has
  /// found it.
  void note_state() noexcept { shared_state_ = true; }
  bool shared_state() const noexcept { return shared_state_; }
  /// Notes that microbatches must enter a module of this rank in order. This holds at once, or,
  /// where steps may be replayed, from when all ranks know of it or no more steps are replayed.
  void note_order(const Entry& entry) noexcept;
  /// Notes that microbatches must enter a module of another rank in order.
  void note_order_elsewhere() noexcept { any_in_order_ = true; }
  /// True if microbatches must enter some module in order, as far as this rank knows.
  bool any_in_order() const noexcept { return any_in_order_; }
  /// True if this rank has noted such a module of its own that not all ranks know of.
  bool has_news_of_order() const noexcept { return order_is_news_; }
  void all_know_of_order() noexcept;
  /// Sets whether the next steps may be replayed, without the messages by which microbatches get
  /// their turn on this rank.
  void may_be_replayed(bool may) noexcept;
  /// Returns which modules of other stages than `rank` have members here that are undefined
  /// tensors: "'block' (Block, byte 24 of its 40), ..."; some of them, empty if there is none. What
  /// their forward sets is set there.
  [[nodiscard]] std::string unset_members(PpRank rank) const;
  /// Returns the entry of a module, also if its model is gone.
  /// @throws InternalError  there is no such module.
  [[nodiscard]] const Entry& at(ModuleId id) const;
  /// @throws InternalError  there is no such module.
  /// @throws UsageError     its model is gone.
  [[nodiscard]] RoutedBase& module(ModuleId id) const;
  /// Returns the module, or nullptr if there is no such module or its model is gone.
  [[nodiscard]] RoutedBase* find(ModuleId id) const noexcept {
    const auto number = static_cast<std::size_t>(id.value);
    return number < entries_.size() ? entries_[number]->module : nullptr;
  }
  /// Returns the path of the module, "<body>" for kBody. Valid as long as the table.
  [[nodiscard]] const char* path(ModuleId id) const noexcept;
  /// Watches the normalisation layers that run with the step body.
  [[nodiscard]] const StatisticsWatch& statistics_of_body() const noexcept { return of_body_; }

 private:
  void enter_in_order() noexcept;

  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<std::pair<const torch::nn::Module*, torch::nn::Module*>> roots_;  // root, layer
  StatisticsWatch of_body_;                                                     // the layers
  std::uint64_t models_ = 0;
  bool shared_state_ = false;
  bool any_in_order_ = false;
  bool order_is_news_ = false;
  bool may_be_replayed_ = false;
  std::vector<const Entry*> in_order_later_;
};

}  // namespace smp::server
