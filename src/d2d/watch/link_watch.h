// d2d/watch/link_watch.h: notices that a link between two ranks has lost what was sent over it,
// from what both of its ends count. Threads: the rank's thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace smp::d2d {

/// The messages and bytes that went one way over a link since it was opened.
struct LinkTraffic {
  std::int64_t messages = 0;
  std::int64_t bytes = 0;

  bool any() const noexcept { return messages > 0; }
  void count(std::size_t size) noexcept {
    ++messages;
    bytes += static_cast<std::int64_t>(size);
  }
};

/// The counts of one end of a link: control bytes, and transfers of data, each once it is there as
/// a whole.
struct LinkCounts {
  LinkTraffic control_sent, control_received;
  LinkTraffic data_sent, data_received;

  bool any() const noexcept {
    return control_sent.any() || control_received.any() || data_sent.any() || data_received.any();
  }
};

/// A loss that is found at one end of a link.
struct LinkLoss {
  bool sent_by_this_end;
  std::int64_t messages;  ///< that are missing
  std::int64_t of;        ///< that were sent
  double seconds;         ///< since something last arrived
};

/// Compares the two ends of one link, look by look. A message counts as lost if it had been sent at
/// one look and is missing several looks and seconds later, while nothing else arrives either
/// although both ends work: MPI over TCP reports no error for a message that went down with its
/// connection.
class LinkWatch {
 public:
  /// @param interval  between looks; looks within less than half of it are one
  /// @param patience  the least time in which nothing must arrive. The time that the missing bytes
  ///                  take at 1 MB/s is added.
  LinkWatch(base::Nanoseconds interval, base::Nanoseconds patience)
      : interval_(interval), patience_(patience) {}

  /// Compares the counts of both ends, and returns a loss if there is one. All that had arrived
  /// must have been taken before.
  std::optional<LinkLoss> look(const LinkCounts& own, const LinkCounts& theirs,
                               base::Nanoseconds now);

 private:
  /// The traffic one way, as it was when something of it had last arrived.
  struct Flow {
    LinkTraffic sent, received;
    base::Nanoseconds since = 0;
    int looks = 0;

    bool has_lost(const LinkTraffic& sent_now, const LinkTraffic& received_now,
                  base::Nanoseconds patience, base::Nanoseconds now);
  };

  base::Nanoseconds interval_, patience_;
  std::array<Flow, 4> flows_;
  base::Nanoseconds looked_ = 0;
};

}  // namespace smp::d2d
