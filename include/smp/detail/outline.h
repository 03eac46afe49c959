// smp/detail/outline.h: of which parts a value is built, noted while a Writer takes it apart
// (smp/codec.h). A step divides its arguments by these notes (smp/step.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "smp/detail/export.h"

namespace smp {
struct Packet;
}

namespace smp::detail {

/// A place in a Packet: so many bytes and so many tensors lie before it.
struct PacketPlace {
  std::size_t bytes = 0;
  std::size_t tensors = 0;
};

/// The kinds of parts that may have rows.
enum class PartKind : char {
  kTensor,  ///< defined
  kList,    ///< of any length, its entries in order: a std::vector
  kArray,   ///< of a length that its type fixes
  kMap,     ///< its entries have keys
  kOwn,     ///< of a type whose Codec says what a microbatch gets; what is in it is no part
};

/// How the Codec of a type slices a value (Codec<T>::slice and rows).
struct SliceRule {
  const std::type_info* type = nullptr;
  /// Returns what each microbatch gets of the packed value, packed.
  std::vector<Packet> (*slices)(Packet whole, int microbatches) = nullptr;
  std::int64_t rows = -1;  ///< of the value; -1: its codec does not say
};

/// A part of a value, as it lies in the value's Packet.
struct OutlinePart {
  PartKind kind = PartKind::kTensor;
  /// The way to it: "extra.mask" is the entry `mask` of the map or struct `extra`, and "[].x" is
  /// the member x of each entry of a list. Empty: the value itself.
  std::string path;
  /// The same way with the numbers of members in place of their names: "2.mask", "[].0".
  std::string numbered;
  int inside = -1;  ///< number of the innermost container that it is a part of, or -1
  PacketPlace begin, end = {};
  std::size_t entries = 0;                     ///< of a container
  std::vector<PacketPlace> entry_begins = {};  ///< of a list
  SliceRule rule = {};                         ///< of PartKind::kOwn
};

/// The tensors and containers of a value, each before those that are parts of it. What a Codec of
/// the user's writes by Writer::bytes() and raw() is no part. Threads: one at a time.
class SMP_API Outline {
 public:
  const std::vector<OutlinePart>& parts() const noexcept { return parts_; }

  void add_tensor(PacketPlace at);
  /// Adds a value that its Codec slices.
  void add_own(const SliceRule& rule, PacketPlace begin, PacketPlace end);
  /// Begins a container, which becomes the innermost one.
  void open(PartKind kind, std::size_t entries, PacketPlace at);
  /// Begins an entry of the innermost container, which is a list.
  void begin_entry(PacketPlace at) { parts_[innermost()].entry_begins.push_back(at); }
  /// Ends the innermost container.
  void close(PacketPlace at);

  /// Begins a member of what is being written. @param name  empty: it has a number only
  void enter(std::string_view name, std::size_t number);
  /// Ends the member of what is being written.
  void leave();

 private:
  struct Member {
    std::size_t path;  // lengths to go back to
    std::size_t numbered;
  };

  std::size_t innermost() const { return static_cast<std::size_t>(open_.back()); }
  void add(PartKind kind, PacketPlace at);
  void append(std::string_view name, std::string_view number);

  std::vector<OutlinePart> parts_;
  std::vector<int> open_;  // numbers of containers
  std::vector<Member> members_;
  std::string path_;
  std::string numbered_;
};

}  // namespace smp::detail
