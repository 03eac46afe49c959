// Damaged bytes of another rank: whoever reads them says what makes no sense, or takes them for
// what they may be; nobody crashes, waits in a loop, sets too much memory aside, or reads and
// writes beside what is his. SMP_FUZZ_ROUNDS=10000 tries a hundred times as many.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "d2d/wire/damaged_bytes.h"
#include "d2d/wire/wire_end.h"
#include "smp/error.h"

namespace smp::d2d {

/// The text of the error by which `run` says what is wrong; empty: it went well. Other errors fail
/// the test, and so does one that says nothing.
template <class Run>
std::string complaint(const Run& run) {
  std::string text;
  try {
    run();
    return "";
  } catch (const InternalError& error) {
    text = error.what();
  } catch (const PeerLostError& error) {
    text = error.what();
  } catch (const UnsupportedError& error) {
    text = error.what();
  }
  EXPECT_FALSE(text.empty());
  return text;
}

/// Bytes in memory of their own, so that a memory checker sees who reads beside them.
class ExactBytes {
 public:
  explicit ExactBytes(const Bytes& bytes)
      : memory_(std::make_unique_for_overwrite<std::byte[]>(bytes.size())), size_(bytes.size()) {
    std::copy(bytes.begin(), bytes.end(), memory_.get());
  }
  std::span<const std::byte> span() const { return {memory_.get(), size_}; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t size_;
};

inline void post_bytes(Wire& wire, GlobalRank to, const Bytes& bytes) {
  ByteBuffer buffer = wire.buffers().take();
  buffer.resize(bytes.size());
  std::copy(bytes.begin(), bytes.end(), buffer.data());
  wire.post(to, std::move(buffer));
}

template <class Record>
Bytes bytes_of(const Record& record) {
  Bytes bytes(sizeof record);
  std::memcpy(bytes.data(), &record, sizeof record);
  return bytes;
}

}  // namespace smp::d2d
