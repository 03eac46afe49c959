// server/record_store.h: what an executed request left behind for its backward (paper App. B).
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "server/executor.h"
#include "server/message.h"

namespace smp::server {

/// The graph between the inputs and the outputs of one module execution.
struct Record {
  c10::intrusive_ptr<BoundaryInput> inputs;
  edge_list outputs;  ///< one an output tensor; invalid where it needs no gradient
  int microbatch = -1;
  int index = 0;  ///< of the execution within the microbatch
  int module = -1;
  const char* path = "";
  Modes modes;
};

/// Records of the running step, by number. Threads: the rank's.
class RecordStore {
 public:
  std::uint64_t add(Record record) {
    records_.emplace(++last_, std::move(record));
    return last_;
  }
  /// Moves the record out, or copies it if `keep`; nothing if it is gone.
  std::optional<Record> take(std::uint64_t number, bool keep) {
    const auto found = records_.find(number);
    if (found == records_.end()) return std::nullopt;
    if (keep) return found->second;
    auto record = std::move(found->second);
    records_.erase(found);
    return record;
  }
  std::size_t size() const noexcept { return records_.size(); }
  /// Numbers go on, so that a message of an earlier step cannot name a new record.
  void clear() { records_.clear(); }

 private:
  std::unordered_map<std::uint64_t, Record> records_;
  std::uint64_t last_ = 0;
};

}  // namespace smp::server
