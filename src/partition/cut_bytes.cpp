// partition/cut_bytes.cpp: one pass over the calls.
#include "partition/cut_bytes.h"

namespace smp::partitioning {
namespace {

constexpr int kNone = -1;

// For every call the next one of the same caller, or kNone.
std::vector<int> next_siblings(const simulate::Trace& trace) {
  std::vector<int> next(trace.calls.size(), kNone);
  std::vector<int> last(trace.calls.size() + 1, kNone);  // by caller + 1
  for (std::size_t call = 0; call < trace.calls.size(); ++call) {
    int& previous = last[static_cast<std::size_t>(trace.calls[call].caller + 1)];
    if (previous != kNone) next[static_cast<std::size_t>(previous)] = static_cast<int>(call);
    previous = static_cast<int>(call);
  }
  return next;
}

class CutCounter {
 public:
  CutCounter(const simulate::Trace& trace, const std::vector<int>& stages, int pp_size)
      : trace_(trace), stages_(stages), cuts_(static_cast<std::size_t>(pp_size)) {}

  std::vector<CutBytes> count() {
    const auto next = next_siblings(trace_);
    std::vector<bool> handed_over(trace_.calls.size(), false);
    for (std::size_t i = 0; i < trace_.calls.size(); ++i) {
      const simulate::TracedCall& call = trace_.calls[i];
      const int here = stages_[call.module];
      const int there = caller_stage(call);
      if (here == there) continue;
      const bool hands_on = next[i] != kNone && in_sequential(call) && stage_of(next[i]) == here;
      if (!handed_over[i]) move(call.input_bytes, there, here);
      if (!hands_on) move(call.output_bytes, here, there);
      if (hands_on) handed_over[next[i]] = true;
    }
    return cuts_;
  }

 private:
  int stage_of(int call) const { return stages_[trace_.calls[call].module]; }
  // The body of the step runs on stage 0.
  int caller_stage(const simulate::TracedCall& call) const {
    return call.caller < 0 ? 0 : stage_of(call.caller);
  }
  bool in_sequential(const simulate::TracedCall& call) const {
    return call.caller >= 0 && trace_.calls[call.caller].sequential;
  }
  void move(std::int64_t bytes, int from, int to) {
    cuts_[from].out += bytes;
    cuts_[to].in += bytes;
  }

  const simulate::Trace& trace_;
  const std::vector<int>& stages_;
  std::vector<CutBytes> cuts_;
};

}  // namespace

std::vector<CutBytes> cut_bytes(const simulate::Trace& trace, const std::vector<int>& stages,
                                int pp_size) {
  std::vector<CutBytes> mean(static_cast<std::size_t>(pp_size));
  for (std::size_t i = 0; i < trace.num_traced(); ++i) {
    const auto cuts = CutCounter(trace.of_microbatch(i), stages, pp_size).count();
    for (std::size_t s = 0; s < mean.size(); ++s) {
      mean[s].in += cuts[s].in;
      mean[s].out += cuts[s].out;
    }
  }
  const auto traced = static_cast<std::int64_t>(trace.num_traced());
  for (CutBytes& cut : mean) {
    cut.in /= traced;
    cut.out /= traced;
  }
  return mean;
}

}  // namespace smp::partitioning
