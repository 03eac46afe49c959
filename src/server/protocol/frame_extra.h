// server/protocol/frame_extra.h: what of a message did not fit into the header of its frame. It
// stands in front of the body, and nearly always there is none. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "d2d/channel/channel.h"
#include "server/protocol/frame_headers.h"
#include "server/protocol/note.h"
#include "server/protocol/order_key.h"
#include "server/protocol/settings.h"
#include "server/protocol/tensor_flags.h"

namespace smp::server::wire {

/// Returns the first 64 of `flags` as bits, which is what a header has room for.
std::uint64_t first_flags(const TensorFlags& flags);

/// The notes about the tensors of a message, each nearly always empty.
struct Notes {
  Note links;  ///< a request has none
  Note forms;
  Note hooked;         ///< a request has none
  Note withheld = {};  ///< likewise
  Note inner = {};     ///< likewise
};

/// Writes what has no room in the header of a frame. ExtraReader takes the same things in the same
/// order.
class ExtraWriter {
 public:
  /// Writes `notes` and sets kNotes in `start`, unless all of them are empty.
  void put_notes(const Notes& notes, Start& start);
  void put_note(std::string_view note);
  /// Writes all settings but the first 64, which are in the header.
  void put_further_settings(const Settings& settings);
  void put_settings(const Settings& settings);
  /// Writes `key`; a short one goes into `header` instead.
  void put_key(const OrderKey& key, ForwardHeader& header);
  /// Writes the flags that first_flags() leaves out. Must be the last thing written.
  void put_further_flags(const TensorFlags& flags);
  /// Writes `bytes`, in a frame without a body of its own. Must be the last thing written.
  void put_rest(std::string_view bytes) { bytes_ += bytes; }

  const std::string& bytes() const noexcept { return bytes_; }

 private:
  std::string bytes_;
};

/// Reads what ExtraWriter has written. Its functions throw InternalError if what is asked for is
/// not there.
class ExtraReader {
 public:
  /// `bytes` must outlive this object.
  explicit ExtraReader(std::string_view bytes) : bytes_(bytes) {}

  Notes take_notes(const Start& start);
  std::string take_note();
  Settings take_further_settings(std::uint64_t first);
  Settings take_settings();
  /// @param num_tensors  the number of tensors of the message, whose further flags may follow
  OrderKey take_key(const ForwardHeader& header, std::size_t num_tensors);
  /// @param first  the flags in the header, as bits
  TensorFlags take_flags(std::uint64_t first, std::size_t num_tensors);
  std::string_view rest() const noexcept { return bytes_; }

 private:
  std::string_view take(std::uint64_t size);

  std::string_view bytes_;
};

/// The body of a frame as it is sent: `extra`, which is nearly always empty, in front of `bytes`.
class Body {
 public:
  /// Puts the two together and notes the size of `extra` in `start`; a size that has no room there
  /// precedes it. `bytes` must outlive this object.
  Body(const ExtraWriter& extra, const std::string& bytes, Start& start);
  Body(const Body&) = delete;
  Body& operator=(const Body&) = delete;
  std::string_view view() const noexcept { return view_; }

 private:
  std::string joined_;
  std::string_view view_;
};

/// The two parts of a body that was received; they point into the frame.
struct SplitBody {
  ExtraReader extra;
  std::string_view bytes;
};
SplitBody split_body(const d2d::ArrivedFrame& frame, const Start& start);

std::string_view text_of(std::span<const std::byte> bytes);

}  // namespace smp::server::wire
