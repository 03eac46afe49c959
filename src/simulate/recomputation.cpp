// simulate/recomputation.cpp: finds the calls that are computed again, then rewrites their
// intervals.
#include "simulate/recomputation.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace smp::simulate {
namespace {

constexpr int kHeld = -1;  // the region of what is not computed again

/// The calls of one stage that are computed again together.
struct Region {
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
    share_inputs();
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
        regions_.push_back({result_.calls[i].input_bytes, again->keeps_products, {}});
      }
      region_of_call_.push_back(region);
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
        if (is_held_before(region, held.keepers, seen)) {
          auto& inputs = regions_[region].inputs;
          inputs = std::max<std::int64_t>(0, inputs - tensor.bytes);
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
    std::int64_t made = 0, kept = region.inputs;
    for (const auto& id : region.parts) {
      auto& own = interval(id);
      made += own.activation_bytes;
      if (region.keeps_products) {
        made -= own.saved_product_bytes;
        kept += own.product_bytes;
      }
      own.gradient_bytes += made;
      own.activation_bytes = kept + answer_bytes(id);
      kept = 0;
      const auto times = result_.times_of(own);
      const double again = region.keeps_products ? share_without_products(own) : 1;
      own.backward_seconds = times.backward + again * times.forward;
      own.weight_seconds = times.weights;
      for (auto& profile : result_.profiles) {
        auto& there = profile.times[Trace::index_of(id)];
        there.backward += again * there.forward;
      }
    }
  }

  static double share_without_products(const ComputeInterval& own) {
    return own.seconds > 0 ? std::max(0.0, 1 - own.product_seconds / own.seconds) : 1;
  }

  /// What another stage gives back to the region after its interval `id`.
  std::int64_t answer_bytes(const IntervalId& id) const {
    if (!id.before) return 0;
    const auto& call = result_.calls[id.call];
    return stages_[call.module] == stage_of(call.caller) ? 0 : call.output_bytes;
  }

  Trace result_;
  const RecomputedModules& recomputed_;
  const std::vector<int>& stages_;
  std::vector<Region> regions_;
  std::vector<int> region_of_call_;  // by call
};

}  // namespace

Trace with_recomputation(const Trace& traced, const Trace& all, const std::vector<int>& stages) {
  return Recomputation(traced, all, stages).run();
}

}  // namespace smp::simulate
