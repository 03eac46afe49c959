// d2d/watch/link_watch.cpp: see the header.
#include "d2d/watch/link_watch.h"

namespace smp::d2d {
namespace {

constexpr int kLooks = 3;  // beside the first
/// The speed of the slowest network that anybody would train over.
constexpr std::int64_t kSlowestBytesPerSecond = 1'000'000;

}  // namespace

std::optional<LinkLoss> LinkWatch::look(const LinkCounts& own, const LinkCounts& theirs,
                                        base::Nanoseconds now) {
  const base::Nanoseconds pause = now - looked_;
  if (looked_ != 0 && pause < interval_ / 2) return std::nullopt;
  // After a long pause one of the ends was busy or stopped: what was before says nothing of now.
  if (looked_ == 0 || pause > 5 * interval_) flows_ = {};
  looked_ = now;
  struct Way {
    bool sent_by_this_end;
    const LinkTraffic &sent, &received;
  };
  const std::array<Way, 4> ways{{{true, own.control_sent, theirs.control_received},
                                 {false, theirs.control_sent, own.control_received},
                                 {true, own.data_sent, theirs.data_received},
                                 {false, theirs.data_sent, own.data_received}}};
  std::optional<LinkLoss> loss;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    const auto& [sent_by_this_end, sent, received] = ways[i];
    Flow& flow = flows_[i];
    if (!flow.has_lost(sent, received, patience_, now) || loss) continue;
    loss = {sent_by_this_end, flow.sent.messages - received.messages, flow.sent.messages,
            static_cast<double>(now - flow.since) / base::kSecond};
  }
  return loss;
}

bool LinkWatch::Flow::has_lost(const LinkTraffic& sent_now, const LinkTraffic& received_now,
                               base::Nanoseconds patience, base::Nanoseconds now) {
  const bool moved = since == 0 || received_now.messages != received.messages;
  if (moved || received.messages >= sent.messages) {
    *this = {sent_now, received_now, now, 0};
    return false;
  }
  const auto missing = sent.bytes - received.bytes;
  const auto transit = missing * (base::kSecond / kSlowestBytesPerSecond);
  return ++looks >= kLooks && now - since >= patience + transit;
}

}  // namespace smp::d2d
