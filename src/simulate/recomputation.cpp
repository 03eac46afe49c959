// simulate/recomputation.cpp: finds the calls that are computed again, then rewrites their
// intervals.
#include "simulate/recomputation.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

namespace smp::simulate {
namespace {

constexpr int kHeld = -1;  // the region of what is not computed again
constexpr int kBody = -1;  // the request of what runs in the body

/// The calls of one stage that are computed again together.
struct Region {
  int call = 0;             ///< that begins it
  std::int64_t inputs = 0;  ///< bytes that it keeps from its start on
  bool keeps_products = false;
  std::vector<IntervalId> parts;  ///< in the order in which they run
};

class Recomputation {
 public:
  Recomputation(const Trace& traced, const Trace& all, const std::vector<int>& stages)
      : result_(traced), recomputed_(all.recomputed), stages_(stages) {}

  Trace run() {
    find_regions();
    order_intervals();
    find_requests();
    share_inputs();
    share_uses();
    for (auto& region : regions_) rewrite(region);
    return std::move(result_);
  }

 private:
  int stage_of(int call) const {
    return stages_[call < 0 ? 0 : static_cast<std::size_t>(result_.calls[call].module)];
  }
  int region_of(int call) const { return call < 0 ? kHeld : region_of_call_[call]; }
  int region_of(const IntervalId& id) const {
    return region_of(id.before ? result_.calls[id.call].caller : id.call);
  }

  void find_regions() {
    for (std::size_t i = 0; i < result_.calls.size(); ++i) {
      const int caller = result_.calls[i].caller;
      const int module = result_.calls[i].module;
      const bool stays = stage_of(caller) == stages_[module];
      int region = stays ? region_of(caller) : kHeld;
      const auto* const again = find_module(recomputed_, module);
      if (region == kHeld && again != nullptr) {
        region = static_cast<int>(regions_.size());
        regions_.push_back(
            {static_cast<int>(i), result_.calls[i].input_bytes, again->keeps_products, {}});
      }
      region_of_call_.push_back(region);
      answers_.push_back(stays ? 0 : result_.calls[i].output_bytes);
    }
  }

  /// The intervals of each region, in the order in which they run.
  void order_intervals() {
    std::vector<int> open;  // calls that have begun and not ended
    const auto end_until = [&](int caller) {
      while (!open.empty() && open.back() != caller) {
        add({open.back(), false});
        open.pop_back();
      }
    };
    for (int call = 0; call < static_cast<int>(result_.calls.size()); ++call) {
      end_until(result_.calls[call].caller);
      add({call, true});
      open.push_back(call);
    }
    end_until(-1);
  }
  void add(const IntervalId& id) {
    const int region = region_of(id);
    if (region != kHeld) regions_[region].parts.push_back(id);
  }

  /// What outer intervals keep is held whatever is computed again; what several regions have as an
  /// input is held once.
  void share_inputs() {
    std::vector<SharedTensor> shared;
    for (const auto& tensor : result_.shared) {
      SharedTensor held{tensor.bytes, {}};
      std::vector<int> seen;  // regions
      for (const auto& keeper : tensor.keepers) {
        const int region = region_of(keeper);
        if (region == kHeld) {
          held.keepers.push_back(keeper);
          continue;
        }
        if (std::find(seen.begin(), seen.end(), region) != seen.end()) continue;
        if (result_.uses.empty() && is_held_before(region, held.keepers, seen)) {
          take_off(regions_[region].inputs, tensor.bytes);
        }
        seen.push_back(region);
      }
      const bool first_is_dropped = region_of(tensor.keepers.front()) != kHeld;
      if (first_is_dropped && !held.keepers.empty()) {
        interval(held.keepers.front()).activation_bytes += tensor.bytes;
      }
      if (held.keepers.size() > 1) shared.push_back(std::move(held));
    }
    result_.shared = std::move(shared);
  }

  /// The first region among several may have made the tensor, and then does not hold it.
  bool is_held_before(int region, const std::vector<IntervalId>& keepers,
                      const std::vector<int>& regions) const {
    constexpr int kSurely = 2;
    const int stage = stage_of_region(region);
    const bool outside = std::any_of(keepers.begin(), keepers.end(), [&](const IntervalId& id) {
      return stage_of(id.before ? result_.calls[id.call].caller : id.call) == stage;
    });
    const auto others = std::count_if(regions.begin(), regions.end(),
                                      [&](int other) { return stage_of_region(other) == stage; });
    return outside || others >= kSurely;
  }
  static void take_off(std::int64_t& bytes, std::int64_t less) {
    bytes = std::max<std::int64_t>(0, bytes - less);
  }

  /// The request, or the body, in which each call runs: what it has of another request's tensors
  /// are copies. Neighbours of a Sequential on one stage share a request (simulate/step_program.h).
  void find_requests() {
    std::vector<int> last(result_.calls.size(), kBody);  // of a Sequential, by its call; else none
    for (int i = 0; i < static_cast<int>(result_.calls.size()); ++i) {
      const auto& call = result_.calls[i];
      const bool joins = call.caller >= 0 && result_.calls[call.caller].sequential;
      int request = i;
      if (stage_of(call.caller) == stages_[call.module]) {
        request = request_of(call.caller);
        if (joins) last[call.caller] = kBody;
      } else if (joins) {
        const int before = last[call.caller];
        if (before >= 0 && stage_of(before) == stages_[call.module]) request = before;
        last[call.caller] = request;
      }
      request_of_call_.push_back(request);
    }
  }
  int request_of(int call) const { return call < 0 ? kBody : request_of_call_[call]; }
  int request_of(const IntervalId& id) const {
    return request_of(id.before ? result_.calls[id.call].caller : id.call);
  }

  /// Counts a tensor once in each request: with the operators that are not computed again, else
  /// with the first that has it.
  void share_uses() {
    given_.resize(result_.num_intervals());
    std::vector<int> having;           // requests
    const TensorUse* first = nullptr;  // of the tensor
    bool given = false;                // to who keeps it first
    for (const auto& use : result_.uses) {
      if (first == nullptr || first->tensor != use.tensor) {
        having.clear();
        given = false;
        first = &use;
      }
      if (!given && is_given(*first, use)) {
        given_[Trace::index_of(first->at)] += use.bytes;
        given = true;
      }
      auto* const kept = kept_for(use);
      if (kept == nullptr && !is_held(use)) continue;
      const int request = request_with(use);
      if (std::find(having.begin(), having.end(), request) == having.end()) {
        having.push_back(request);
      } else if (kept != nullptr) {
        take_off(*kept, use.bytes);
      }
    }
  }
  /// True if the region whose operator keeps the tensor first got it: it is there then, and not
  /// made again.
  bool is_given(const TensorUse& first, const TensorUse& use) {
    if (first.kind != TensorUseKind::kKept || use.kind == TensorUseKind::kKept) return false;
    const int region = region_of(first.at), call = use.at.call;
    const bool argument = use.kind == TensorUseKind::kArgument;
    const int getter = region_of(argument ? call : result_.calls[call].caller);
    return region != kHeld && region == getter && kept_for(use) != nullptr;
  }
  bool is_held(const TensorUse& use) const {
    return use.kind == TensorUseKind::kKept && region_of(use.at) == kHeld;
  }
  /// Returns the bytes that are kept for a use, by a call that is computed again; nullptr: none.
  std::int64_t* kept_for(const TensorUse& use) {
    const int call = use.at.call;
    if (use.kind == TensorUseKind::kArgument) {
      const int region = region_of(call);
      return region != kHeld && regions_[region].call == call ? &regions_[region].inputs : nullptr;
    }
    const bool answers = use.kind == TensorUseKind::kResult && answers_[call] > 0;
    return answers && region_of(result_.calls[call].caller) != kHeld ? &answers_[call] : nullptr;
  }
  int request_with(const TensorUse& use) const {
    if (use.kind == TensorUseKind::kKept) return request_of(use.at);
    const int call = use.at.call;
    return request_of(use.kind == TensorUseKind::kArgument ? call : result_.calls[call].caller);
  }

  int stage_of_region(int region) const {
    const auto& id = regions_[region].parts.front();
    return stage_of(id.before ? result_.calls[id.call].caller : id.call);
  }

  ComputeInterval& interval(const IntervalId& id) {
    if (id.call < 0) return result_.body_after;
    auto& call = result_.calls[id.call];
    return id.before ? call.before : call.after;
  }

  void rewrite(Region& region) {
    const bool goes_back = std::any_of(
        region.parts.begin(), region.parts.end(),
        [&](const IntervalId& id) { return result_.backward_of(result_.interval(id)) > 0; });
    if (!goes_back) return;
    const auto needed = last_needed(region);
    const bool waits = std::any_of(region.parts.begin(), region.parts.begin() + needed,
                                   [&](const IntervalId& id) { return asks(id); });
    std::int64_t made = 0, kept = region.inputs;
    for (std::ptrdiff_t i = 0; i < std::ssize(region.parts); ++i) {
      const auto& part = region.parts[i];
      auto& own = interval(part);
      made += std::max<std::int64_t>(0, own.activation_bytes - given_[Trace::index_of(part)]);
      if (region.keeps_products) {
        made -= own.saved_product_bytes;
        kept += own.product_bytes;
      }
      own.gradient_bytes += made;
      own.activation_bytes = kept + answer_bytes(part);
      kept = 0;
      // While the other stage has the gradients, what was computed again is there.
      if (asks(part) && i < needed) result_.calls[part.call].caller_gradient_bytes += made;
      run_again(part, region.keeps_products ? share_without_products(own) : 1,
                waits && i < needed ? region.parts[needed] : part);
    }
  }

  /// Adds the time of the forward of `part`, or a share of it, to the backward of `before`.
  void run_again(const IntervalId& part, double share, const IntervalId& before) {
    settle_times(interval(part));
    auto& later = interval(before);
    settle_times(later);
    later.backward_seconds += share * interval(part).seconds;
    for (auto& profile : result_.profiles) {
      profile.times[Trace::index_of(before)].backward +=
          share * profile.times[Trace::index_of(part)].forward;
    }
  }
  void settle_times(ComputeInterval& own) const {
    const auto times = result_.times_of(own);
    own.backward_seconds = times.backward;
    own.weight_seconds = times.weights;
  }

  /// Returns the part whose backward is the first that needs what a region's operators keep: all of
  /// the region is computed again before it. The last one if none keeps anything.
  std::ptrdiff_t last_needed(const Region& region) const {
    const auto last = std::ssize(region.parts) - 1;
    for (auto i = last; i >= 0; --i) {
      if (result_.interval(region.parts[i]).activation_bytes > 0) return i;
    }
    return last;
  }

  /// True if another stage is asked after the interval.
  bool asks(const IntervalId& id) const {
    return id.before &&
           stages_[result_.calls[id.call].module] != stage_of(result_.calls[id.call].caller);
  }

  static double share_without_products(const ComputeInterval& own) {
    return own.seconds > 0 ? std::max(0.0, 1 - own.product_seconds / own.seconds) : 1;
  }

  /// What another stage gives back to the region after its interval `id`.
  std::int64_t answer_bytes(const IntervalId& id) const {
    return id.before ? answers_[id.call] : 0;
  }

  Trace result_;
  const RecomputedModules& recomputed_;
  const std::vector<int>& stages_;
  std::vector<Region> regions_;
  std::vector<int> region_of_call_;    // by call
  std::vector<std::int64_t> answers_;  // by call: bytes that it gives to another stage
  std::vector<std::int64_t> given_;    // by interval: of what it keeps first, that its region got
  std::vector<int> request_of_call_;   // by call: the one that began it
};

}  // namespace

Trace with_recomputation(const Trace& traced, const Trace& all, const std::vector<int>& stages) {
  return Recomputation(traced, all, stages).run();
}

}  // namespace smp::simulate
