// d2d/wires/fake_cuda.h: CUDA's promises about streams and events, and nothing beyond them, for
// several processes at once that are all this one: what was put on streams is done later, a stream
// at a time, at random. Whoever forgets to wait reads what is not there yet.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "d2d/wires/cuda/cuda_device.h"
#include "smp/error.h"

namespace smp::d2d {

/// All GPUs of a machine.
class FakeCuda {
 public:
  explicit FakeCuda(std::uint64_t seed) : random_(seed) {}
  ~FakeCuda() {
    EXPECT_TRUE(memory_.empty()) << memory_.size() << " blocks were not freed";
    EXPECT_EQ(open_, 0) << "memory is still open";
    EXPECT_EQ(events_, 0) << "events were not freed";
  }
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  /// Does some of what is on streams.
  void work() {
    if (frozen) return;
    for (auto steps = random_() % 4; steps > 0; --steps) step();
  }
  /// Does all of it.
  void finish() {
    while (step()) continue;
    for (const auto& stream : streams_) SMP_ASSERT(stream->empty(), "a stream waits for ever");
  }
  /// A kernel on `stream`, which begins when it is its turn there and `ready`.
  void put_kernel(void* stream, std::function<bool()> ready, std::function<void()> run) {
    Work work{Work::kKernel};
    work.ready = std::move(ready);
    work.run = std::move(run);
    static_cast<Stream*>(stream)->push_back(std::move(work));
  }
  /// The GPUs do nothing.
  bool frozen = false;
  /// Whether handles of events may pass between processes.
  bool shares_events = true;
  /// Whether this machine lets processes open each other's memory.
  bool shares_memory = true;

 private:
  friend class FakeCudaDevice;
  struct Event {
    std::uint64_t recorded = 0, happened = 0;
    int owners = 1;
  };
  struct Work {
    enum Kind { kCopy, kRecord, kWait, kKernel } kind = kCopy;
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
    Event* event = nullptr;
    std::uint64_t record = 0;
    std::function<bool()> ready{};
    std::function<void()> run{};
  };
  using Stream = std::deque<Work>;

  bool writes_to(std::byte* memory) const {
    const auto found = memory_.find(memory);
    if (found == memory_.end()) return false;
    const auto* const end = memory + found->second.size();
    return any_work([&](const Work& work) {
      return work.kind == Work::kCopy && work.to >= memory && work.to < end;
    });
  }
  bool names(const Event* event) const {
    return any_work([&](const Work& work) { return work.event == event; });
  }
  template <class Holds>
  bool any_work(const Holds& holds) const {
    return std::any_of(streams_.begin(), streams_.end(), [&](const auto& stream) {
      return std::any_of(stream->begin(), stream->end(), holds);
    });
  }

  /// The oldest piece of work of some stream that need not wait; false: there is none.
  bool step() {
    std::vector<Stream*> ready;
    for (const auto& stream : streams_) {
      if (!stream->empty() && can_do(stream->front())) ready.push_back(stream.get());
    }
    if (ready.empty()) return false;
    auto& stream = *ready[random_() % ready.size()];
    do_work(stream.front());
    stream.pop_front();
    return true;
  }
  static bool can_do(const Work& work) {
    if (work.kind == Work::kKernel) return work.ready();
    return work.kind != Work::kWait || work.event->happened >= work.record;
  }
  static void do_work(const Work& work) {
    if (work.kind == Work::kCopy) std::memcpy(work.to, work.from, work.bytes);
    if (work.kind == Work::kRecord) work.event->happened = work.record;
    if (work.kind == Work::kKernel) work.run();
  }

  std::mt19937_64 random_;
  std::map<std::byte*, std::vector<std::byte>> memory_;
  std::vector<std::unique_ptr<Stream>> streams_;
  int open_ = 0;
  int events_ = 0;
};

/// One process's view of its GPU.
class FakeCudaDevice final : public CudaDevice {
 public:
  /// @param gpu  of the machine, by number
  explicit FakeCudaDevice(std::shared_ptr<FakeCuda> cuda, int gpu = 0)
      : cuda_(std::move(cuda)), gpu_(gpu) {
    current_ = make_stream();
  }
  std::string identity() override { return std::to_string(gpu_); }

  std::byte* allocate(std::size_t bytes) override {
    std::vector<std::byte> block(bytes);
    auto* const start = block.data();
    cuda_->memory_.emplace(start, std::move(block));
    return start;
  }
  void free(std::byte* memory) noexcept override {
    EXPECT_FALSE(cuda_->writes_to(memory)) << "freed while it is written to";
    cuda_->memory_.erase(memory);
  }
  Handle export_memory(std::byte* memory) override { return handle_of(memory); }
  std::byte* open_memory(const Handle& handle) override {
    SMP_REQUIRE_AS(PeerLostError, cuda_->shares_memory, "cuIpcOpenMemHandle: not supported");
    auto* const memory = from_handle<std::byte>(handle);
    SMP_ASSERT(cuda_->memory_.count(memory) == 1, "a handle of no memory");
    ++cuda_->open_;
    return memory;
  }
  void close_memory(std::byte* memory) noexcept override {
    EXPECT_EQ(cuda_->memory_.count(memory), 1U) << "closed after its owner freed it";
    EXPECT_FALSE(cuda_->writes_to(memory)) << "closed while it is written to";
    --cuda_->open_;
  }
  void write(std::byte* to, const std::byte* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void read(std::byte* to, const std::byte* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }

  Stream make_stream() override {
    cuda_->streams_.push_back(std::make_unique<FakeCuda::Stream>());
    return cuda_->streams_.back().get();
  }
  void free_stream(Stream stream) noexcept override {
    EXPECT_TRUE(static_cast<FakeCuda::Stream*>(stream)->empty());
  }
  Stream current_stream() override { return current_; }
  void set_current_stream(Stream stream) { current_ = stream; }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes, Stream stream) override {
    put(stream, {FakeCuda::Work::kCopy, to, from, bytes});
  }

  Event make_event(bool shared) override {
    SMP_REQUIRE_AS(PeerLostError, !shared || cuda_->shares_events, "cuEventCreate: not supported");
    ++cuda_->events_;
    return new FakeCuda::Event();
  }
  void free_event(Event event) noexcept override {
    auto* const own = static_cast<FakeCuda::Event*>(event);
    EXPECT_FALSE(cuda_->names(own)) << "freed while a stream waits for it";
    if (--own->owners > 0) return;
    --cuda_->events_;
    delete own;
  }
  Handle export_event(Event event) override { return handle_of(event); }
  Event open_event(const Handle& handle) override {
    auto* const event = from_handle<FakeCuda::Event>(handle);
    ++event->owners;
    return event;
  }
  void record(Event event, Stream stream) override {
    auto* const own = static_cast<FakeCuda::Event*>(event);
    put(stream, {FakeCuda::Work::kRecord, nullptr, nullptr, 0, own, ++own->recorded});
  }
  void wait(Stream stream, Event event) override {
    auto* const own = static_cast<FakeCuda::Event*>(event);
    put(stream, {FakeCuda::Work::kWait, nullptr, nullptr, 0, own, own->recorded});
  }
  bool done(Event event) override {
    cuda_->work();
    const auto* const own = static_cast<FakeCuda::Event*>(event);
    return own->happened == own->recorded;
  }

 private:
  void put(Stream stream, const FakeCuda::Work& work) {
    static_cast<FakeCuda::Stream*>(stream)->push_back(work);
    cuda_->work();
  }
  template <class T>
  static Handle handle_of(T* address) {
    Handle handle{};
    std::memcpy(handle.data(), &address, sizeof address);
    return handle;
  }
  template <class T>
  static T* from_handle(const Handle& handle) {
    T* address = nullptr;
    std::memcpy(&address, handle.data(), sizeof address);
    return address;
  }

  std::shared_ptr<FakeCuda> cuda_;
  int gpu_;
  Stream current_;
};

}  // namespace smp::d2d
