// d2d/collectives/fake_nccl.h: NCCL's promises to its callers, and what it asks of them, for
// several processes at once that are all this one, on streams of FakeCuda. Calls come back before
// their kernels are on the stream, and kernels end when all members' have begun.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "d2d/collectives/nccl_library.h"
#include "d2d/wires/fake_cuda.h"

namespace smp::d2d {

/// One at a time.
class FakeNccl {
 public:
  FakeNccl(std::uint64_t seed, std::shared_ptr<FakeCuda> cuda)
      : random_(seed), cuda_(std::move(cuda)) {
    current() = this;
  }
  ~FakeNccl() {
    EXPECT_EQ(communicators_, 0) << "communicators were not ended";
    current() = nullptr;
  }
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  static NcclLibrary library();

  int version = 22809;
  int failing_state = 0;  ///< what get_async_error() says from now on; 0: how it is
  int aborted = 0, destroyed = 0;
  std::size_t kernels = 0;

 private:
  enum class Kind { kAllReduce, kReduceScatter, kAllGather, kExchange };
  struct Round {  // one collective
    Kind kind{};
    std::size_t count = 0;
    int type = 0;
    std::size_t begun = 0;
    std::vector<std::vector<std::byte>> inputs;  // by rank
  };
  struct Group {
    int size = 0;
    int joined = 0;
    std::vector<std::shared_ptr<Round>> rounds;
  };
  struct Communicator {
    std::shared_ptr<Group> group;
    int rank = 0;
    std::size_t calls = 0;
    int busy = 0;  // polls until the last call is on the stream
    std::function<void()> put{};
    bool finalized = false;
  };
  struct Part {  // of a group of sends and receives
    const void* from = nullptr;
    void* to = nullptr;
    std::size_t count = 0;
  };
  struct PartGroup {
    int depth = 0;
    std::map<int, Part> parts;
    void* communicator = nullptr;
    void* stream = nullptr;
  };

  static FakeNccl*& current() {
    static FakeNccl* only = nullptr;
    return only;
  }
  static std::size_t bytes_of(int type) {
    static const std::map<int, std::size_t> sizes{{0, 1}, {1, 1}, {2, 4}, {4, 8},
                                                  {6, 2}, {7, 4}, {8, 8}, {9, 2}};
    return sizes.at(type);
  }
  static c10::ScalarType dtype_of(int type) {
    static const std::map<int, c10::ScalarType> types{
        {0, at::kChar}, {1, at::kByte},  {2, at::kInt},    {4, at::kLong},
        {6, at::kHalf}, {7, at::kFloat}, {8, at::kDouble}, {9, at::kBFloat16}};
    return types.at(type);
  }
  static Communicator& of(void* communicator) { return *static_cast<Communicator*>(communicator); }

  int start(Communicator& own, Kind kind, std::function<std::vector<std::byte>()> read,
            std::function<void(const std::vector<std::byte>&)> write, std::size_t count, int type,
            void* stream);
  static std::vector<std::byte> outcome(const Round& round, int rank);

  std::mt19937_64 random_;
  std::shared_ptr<FakeCuda> cuda_;
  std::map<std::string, std::shared_ptr<Group>> groups_;
  int ids_ = 0;
  int communicators_ = 0;
  PartGroup parts_;
};

inline std::vector<std::byte> bytes_at(const void* from, std::size_t bytes) {
  const auto* const start = static_cast<const std::byte*>(from);
  return {start, start + bytes};
}

/// The kernel is put on the stream some polls later, and reads, waits for the others, and writes
/// there.
inline int FakeNccl::start(Communicator& own, Kind kind,
                           std::function<std::vector<std::byte>()> read,
                           std::function<void(const std::vector<std::byte>&)> write,
                           std::size_t count, int type, void* stream) {
  EXPECT_EQ(own.busy, 0) << "a call while the one before is still in progress";
  EXPECT_FALSE(own.finalized);
  auto& rounds = own.group->rounds;
  const auto place = own.calls++;
  if (place == rounds.size()) {
    rounds.push_back(std::make_shared<Round>(Round{kind, count, type, 0, {}}));
    rounds.back()->inputs.resize(static_cast<std::size_t>(own.group->size));
  }
  const auto round = rounds[place];
  EXPECT_TRUE(round->kind == kind && round->count == count && round->type == type)
      << "call " << place << " differs between members";
  own.busy = 1 + static_cast<int>(random_() % 3);
  own.put = [this, rank = own.rank, round, read, write, stream] {
    ++kernels;
    cuda_->put_kernel(
        stream, [] { return true; },
        [=] {
          round->inputs[static_cast<std::size_t>(rank)] = read();
          ++round->begun;
        });
    cuda_->put_kernel(
        stream, [=] { return round->begun == round->inputs.size(); },
        [=] { write(outcome(*round, rank)); });
  };
  return NcclLibrary::kInProgress;
}

/// Of whole inputs; sums from the last member to the first.
inline std::vector<std::byte> FakeNccl::outcome(const Round& round, int rank) {
  std::vector<std::byte> joined;
  if (round.kind == Kind::kAllGather) {
    for (const auto& input : round.inputs) joined.insert(joined.end(), input.begin(), input.end());
    return joined;
  }
  const auto part = round.count * bytes_of(round.type);
  const auto offset = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank) * part);
  if (round.kind == Kind::kExchange) {
    for (const auto& input : round.inputs) {
      joined.insert(joined.end(), input.begin() + offset,
                    input.begin() + offset + static_cast<std::ptrdiff_t>(part));
    }
    return joined;
  }
  at::Tensor sum;
  for (auto input = round.inputs.rbegin(); input != round.inputs.rend(); ++input) {
    auto bytes = *input;
    const auto numbers = static_cast<std::int64_t>(bytes.size() / bytes_of(round.type));
    const auto term = at::from_blob(bytes.data(), {numbers}, dtype_of(round.type)).clone();
    sum = sum.defined() ? sum + term : term;
  }
  joined = bytes_at(sum.const_data_ptr(), sum.nbytes());
  if (round.kind == Kind::kAllReduce) return joined;
  return {joined.begin() + offset, joined.begin() + offset + static_cast<std::ptrdiff_t>(part)};
}

inline NcclLibrary FakeNccl::library() {
  NcclLibrary all{};
  all.get_version = [](int* version) {
    *version = current()->version;
    return NcclLibrary::kSuccess;
  };
  all.error_string = [](int result) {
    return result == 6 ? "remote process exited or there was a network error" : "some error";
  };
  all.last_error = [](void*) { return "the cable is cut"; };
  all.get_unique_id = [](NcclLibrary::Id* id) {
    id->fill('i');
    const auto text = std::to_string(current()->ids_++);
    std::copy(text.begin(), text.end(), id->begin());
    return NcclLibrary::kSuccess;
  };
  all.init_rank = [](void** communicator, int size, NcclLibrary::Id id, int rank,
                     NcclLibrary::Config* config) {
    EXPECT_EQ(config->size, sizeof(NcclLibrary::Config));
    EXPECT_EQ(config->blocking, 0);
    auto& group = current()->groups_[std::string(id.data(), id.size())];
    if (!group) group = std::make_shared<Group>();
    group->size = size;
    ++group->joined;
    ++current()->communicators_;
    *communicator = new Communicator{group, rank};
    return NcclLibrary::kInProgress;
  };
  all.get_async_error = [](void* communicator, int* state) {
    auto& own = of(communicator);
    *state = current()->failing_state;
    if (*state != 0) return NcclLibrary::kSuccess;
    if (own.busy > 0 && --own.busy == 0 && own.put) std::exchange(own.put, nullptr)();
    const bool busy = own.busy > 0 || own.group->joined < own.group->size;
    *state = busy ? NcclLibrary::kInProgress : NcclLibrary::kSuccess;
    return NcclLibrary::kSuccess;
  };
  all.finalize = [](void* communicator) {
    auto& own = of(communicator);
    EXPECT_EQ(own.busy, 0);
    own.finalized = true;
    own.busy = 2;
    own.put = [] { current()->cuda_->finish(); };
    return NcclLibrary::kInProgress;
  };
  all.destroy = [](void* communicator) {
    EXPECT_TRUE(of(communicator).finalized && of(communicator).busy == 0);
    delete &of(communicator);
    --current()->communicators_;
    ++current()->destroyed;
    return NcclLibrary::kSuccess;
  };
  all.abort = [](void* communicator) {
    delete &of(communicator);
    --current()->communicators_;
    ++current()->aborted;
    return NcclLibrary::kSuccess;
  };
  all.all_reduce = [](const void* from, void* to, std::size_t count, int type, int operation,
                      void* communicator, void* stream) {
    EXPECT_EQ(operation, NcclLibrary::kSum);
    const auto bytes = count * bytes_of(type);
    return current()->start(
        of(communicator), Kind::kAllReduce, [=] { return bytes_at(from, bytes); },
        [=](const auto& result) { std::memcpy(to, result.data(), result.size()); }, count, type,
        stream);
  };
  all.reduce_scatter = [](const void* from, void* to, std::size_t count, int type, int operation,
                          void* communicator, void* stream) {
    EXPECT_EQ(operation, NcclLibrary::kSum);
    auto& own = of(communicator);
    const auto bytes = count * bytes_of(type) * static_cast<std::size_t>(own.group->size);
    return current()->start(
        own, Kind::kReduceScatter, [=] { return bytes_at(from, bytes); },
        [=](const auto& result) { std::memcpy(to, result.data(), result.size()); }, count, type,
        stream);
  };
  all.all_gather = [](const void* from, void* to, std::size_t count, int type, void* communicator,
                      void* stream) {
    const auto bytes = count * bytes_of(type);
    return current()->start(
        of(communicator), Kind::kAllGather, [=] { return bytes_at(from, bytes); },
        [=](const auto& result) { std::memcpy(to, result.data(), result.size()); }, count, type,
        stream);
  };
  all.send = [](const void* from, std::size_t count, int type, int peer, void* communicator,
                void* stream) {
    auto& parts = current()->parts_;
    EXPECT_EQ(parts.depth, 1) << "sends and receives of one exchange belong into a group";
    EXPECT_EQ(type, NcclLibrary::kInt8);
    parts.communicator = communicator;
    parts.stream = stream;
    parts.parts[peer].from = from;
    parts.parts[peer].count = count;
    return NcclLibrary::kSuccess;
  };
  all.receive = [](void* to, std::size_t count, int, int peer, void*, void*) {
    EXPECT_EQ(count, current()->parts_.parts[peer].count);
    current()->parts_.parts[peer].to = to;
    return NcclLibrary::kSuccess;
  };
  all.group_start = [] {
    ++current()->parts_.depth;
    return NcclLibrary::kSuccess;
  };
  all.group_end = [] {
    auto parts = std::exchange(current()->parts_, {});
    auto& own = of(parts.communicator);
    EXPECT_EQ(parts.parts.size(), static_cast<std::size_t>(own.group->size));
    const auto read = [all = parts.parts] {
      std::vector<std::byte> joined;
      for (const auto& [peer, part] : all) {
        const auto bytes = bytes_at(part.from, part.count);
        joined.insert(joined.end(), bytes.begin(), bytes.end());
      }
      return joined;
    };
    const auto write = [all = parts.parts](const std::vector<std::byte>& result) {
      std::size_t offset = 0;
      for (const auto& [peer, part] : all) {
        std::memcpy(part.to, result.data() + offset, part.count);
        offset += part.count;
      }
    };
    return current()->start(own, Kind::kExchange, read, write, parts.parts.at(0).count,
                            NcclLibrary::kInt8, parts.stream);
  };
  return all;
}

}  // namespace smp::d2d
