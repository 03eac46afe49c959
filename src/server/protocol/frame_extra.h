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

/// Those that a header has room for.
std::uint64_t first_flags(const TensorFlags& flags);

/// The notes about the tensors of a message, each nearly always empty.
struct Notes {
  Note links;  ///< a request has none
  Note forms;
  Note hooked;         ///< a request has none
  Note withheld = {};  ///< likewise
  Note inner = {};     ///< likewise
};

/// ExtraReader takes the same things in the same order.
class ExtraWriter {
 public:
  /// If there are any.
  void put_notes(const Notes& notes, Start& start);
  void put_note(std::string_view note);
  /// All but the first flags, which are in the header.
  void put_further_settings(const Settings& settings);
  void put_settings(const Settings& settings);
  /// A short key goes into the header instead.
  void put_key(const OrderKey& key, ForwardHeader& header);
  /// Those that first_flags() leaves out; behind them nothing else.
  void put_further_flags(const TensorFlags& flags);
  /// In a frame without a body of its own; behind them nothing else.
  void put_rest(std::string_view bytes) { bytes_ += bytes; }

  const std::string& bytes() const noexcept { return bytes_; }

 private:
  std::string bytes_;
};

/// @throws InternalError  what is asked for is not there.
class ExtraReader {
 public:
  /// `bytes` outlives it.
  explicit ExtraReader(std::string_view bytes) : bytes_(bytes) {}

  Notes take_notes(const Start& start);
  std::string take_note();
  Settings take_further_settings(std::uint64_t first);
  Settings take_settings();
  /// @param num_tensors  of the message: flags of some may follow
  OrderKey take_key(const ForwardHeader& header, std::size_t num_tensors);
  /// @param first  those in the header
  TensorFlags take_flags(std::uint64_t first, std::size_t num_tensors);
  std::string_view rest() const noexcept { return bytes_; }

 private:
  std::string_view take(std::uint64_t size);

  std::string_view bytes_;
};

/// What is sent as the body of a frame: `extra`, which is nearly always empty, in front of `bytes`.
class Body {
 public:
  /// `bytes` outlives it. @throws UnsupportedError  `extra` has more than 65,535 bytes.
  Body(const ExtraWriter& extra, const std::string& bytes, Start& start);
  Body(const Body&) = delete;
  Body& operator=(const Body&) = delete;
  std::string_view view() const noexcept { return view_; }

 private:
  std::string joined_;
  std::string_view view_;
};

/// The two apart again; they point into the frame.
struct SplitBody {
  ExtraReader extra;
  std::string_view bytes;
};
SplitBody split_body(const d2d::ArrivedFrame& frame, const Start& start);

std::string_view text_of(std::span<const std::byte> bytes);

}  // namespace smp::server::wire
