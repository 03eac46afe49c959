// Devices of a job that do collectives together, played: what was launched is done when all members
// have launched it, late. They want what NCCL wants: every member of a group launches the same
// calls in the same order.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "d2d/collectives/device_collectives.h"
#include "smp/error.h"

namespace smp::d2d {

/// All devices of a job. Tensors are those of a type of device that the host can read.
class PlayedDevices : public std::enable_shared_from_this<PlayedDevices> {
 public:
  struct Options {
    c10::Device device{c10::DeviceType::CPU};
    /// A call counts as launched once it is done: for devices without streams, where whoever gets a
    /// result uses it at once.
    bool at_once = false;
  };
  PlayedDevices(std::uint64_t seed, const Options& options) : random_(seed), options_(options) {}
  static std::shared_ptr<PlayedDevices> make(std::uint64_t seed = 1) { return make(seed, {}); }
  static std::shared_ptr<PlayedDevices> make(std::uint64_t seed, const Options& options) {
    return std::make_shared<PlayedDevices>(seed, options);
  }

  /// A rank's end, on a device of its own unless it is named.
  MakeDeviceCollectives end(const std::string& device = "");

  /// Does all that can be done, groups in random order.
  void finish() {
    while (step()) continue;
  }
  bool step();
  /// Whether every member of every group has launched as many calls as the others.
  bool even() const {
    for (const auto& [id, group] : groups_) {
      for (const auto& calls : group.calls) {
        if (calls.size() != group.calls[0].size()) return false;
      }
    }
    return true;
  }
  /// Calls that all members launched.
  std::size_t done() const {
    std::size_t all = 0;
    for (const auto& [id, group] : groups_) all += group.done;
    return all;
  }

  int failing_launch = -1;      ///< of a rank's calls in a group; -1: none
  int failing_position = 0;     ///< whose
  std::string refused_id;       ///< what make_id() throws
  std::string refused_connect;  ///< what connect() throws at the last position
  bool never_connects = false;
  int disorders = 0;  ///< calls of one place that differ
  int aborted = 0, closed = 0;

 private:
  class End;
  class Call;
  struct Launch {
    CollectiveKind kind{};
    at::Tensor input, result;
  };
  struct Group {
    std::vector<std::vector<Launch>> calls;  // by position
    std::size_t done = 0;
    int connected = 0;
  };
  static bool same(const Launch& one, const Launch& other) {
    return one.kind == other.kind && one.input.sizes() == other.input.sizes() &&
           one.input.scalar_type() == other.input.scalar_type();
  }
  static bool can_do(const Group& group) {
    for (const auto& calls : group.calls) {
      if (calls.size() <= group.done) return false;
    }
    return !group.calls.empty();
  }
  static at::Tensor outcome(const Group& group, std::size_t position);
  void add(const std::string& id, int position, const Launch& launch);

  std::mt19937_64 random_;
  Options options_;
  int devices_ = 0;
  int ids_ = 0;
  std::map<std::string, Group> groups_;
};

class PlayedDevices::End final : public DeviceCollectives {
 public:
  End(std::shared_ptr<PlayedDevices> all, std::string identity)
      : all_(std::move(all)), identity_(std::move(identity)) {}

  const char* name() const noexcept override { return "a played device"; }
  c10::Device device() const noexcept override { return all_->options_.device; }
  std::string identity() override { return identity_; }
  std::string make_id() override {
    SMP_REQUIRE_AS(PeerLostError, all_->refused_id.empty(), all_->refused_id);
    return std::to_string(all_->ids_++);
  }
  void connect(const std::string& id, int position, int size) override {
    SMP_REQUIRE_AS(PeerLostError, all_->refused_connect.empty() || position < size - 1,
                   all_->refused_connect);
    id_ = id;
    position_ = position;
    auto& group = all_->groups_[id];
    group.calls.resize(static_cast<std::size_t>(size));
    ++group.connected;
  }
  bool connected() override {
    const auto& group = all_->groups_[id_];
    return !all_->never_connects && group.connected == static_cast<int>(group.calls.size());
  }
  bool takes(CollectiveKind, c10::ScalarType dtype) const noexcept override {
    return dtype != c10::ScalarType::Short;
  }
  std::unique_ptr<DeviceCall> prepare(CollectiveKind kind, at::Tensor input,
                                      at::Tensor result) override;
  void close() noexcept override { ++all_->closed; }
  void abort() noexcept override { ++all_->aborted; }

 private:
  friend class Call;
  std::shared_ptr<PlayedDevices> all_;
  std::string identity_;
  std::string id_;
  int position_ = 0;
};

class PlayedDevices::Call final : public DeviceCall {
 public:
  Call(End& end, Launch launch) : end_(end), launch_(std::move(launch)) {}

  bool launch() override {
    auto& all = *end_.all_;
    auto& group = all.groups_[end_.id_];
    auto& own = group.calls[static_cast<std::size_t>(end_.position_)];
    if (!started_) {
      if (!all.options_.at_once && all.random_() % 3 == 0) return false;
      SMP_REQUIRE_AS(PeerLostError,
                     all.failing_launch != static_cast<int>(own.size()) ||
                         all.failing_position != end_.position_,
                     "the played device is broken");
      started_ = true;
      place_ = own.size();
      all.add(end_.id_, end_.position_, launch_);
    }
    if (all.options_.at_once) all.finish();
    return !all.options_.at_once || group.done > place_;
  }
  void join() override { EXPECT_TRUE(started_) << "waits for a call that was not launched"; }

 private:
  End& end_;
  Launch launch_;
  bool started_ = false;
  std::size_t place_ = 0;
};

inline std::unique_ptr<DeviceCall> PlayedDevices::End::prepare(CollectiveKind kind,
                                                               at::Tensor input,
                                                               at::Tensor result) {
  return std::make_unique<Call>(*this, Launch{kind, std::move(input), std::move(result)});
}

inline MakeDeviceCollectives PlayedDevices::end(const std::string& device) {
  return [all = shared_from_this(), device](c10::Device) {
    return std::make_unique<End>(
        all, device.empty() ? "device " + std::to_string(all->devices_++) : device);
  };
}

inline void PlayedDevices::add(const std::string& id, int position, const Launch& launch) {
  auto& group = groups_[id];
  const auto place = group.calls[static_cast<std::size_t>(position)].size();
  for (const auto& calls : group.calls) {
    if (calls.size() > place && !same(calls[place], launch)) ++disorders;
  }
  group.calls[static_cast<std::size_t>(position)].push_back(launch);
}

inline bool PlayedDevices::step() {
  std::vector<Group*> ready;
  for (auto& [id, group] : groups_) {
    if (can_do(group)) ready.push_back(&group);
  }
  if (ready.empty()) return false;
  Group& group = *ready[random_() % ready.size()];
  std::vector<at::Tensor> results;
  bool agree = true;
  for (const auto& calls : group.calls) {
    agree = agree && same(calls[group.done], group.calls[0][group.done]);
  }
  for (std::size_t i = 0; agree && i < group.calls.size(); ++i) {
    results.push_back(outcome(group, i));
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    group.calls[i][group.done].result.copy_(results[i]);
  }
  for (auto& calls : group.calls) calls[group.done] = {calls[group.done].kind, {}, {}};
  ++group.done;
  return true;
}

/// Sums in order of members, as by messages.
inline at::Tensor PlayedDevices::outcome(const Group& group, std::size_t position) {
  const auto size = static_cast<std::int64_t>(group.calls.size());
  const auto part = [size](const at::Tensor& tensor, std::size_t i) {
    const auto rows = tensor.size(0) / size;
    return tensor.narrow(0, static_cast<std::int64_t>(i) * rows, rows);
  };
  std::vector<at::Tensor> parts;
  at::Tensor sum;
  const auto kind = group.calls[0][group.done].kind;
  const bool cuts = kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kReduceScatter;
  for (const auto& calls : group.calls) {
    const auto& input = calls[group.done].input;
    parts.push_back(cuts ? part(input, position) : input);
    sum = sum.defined() ? sum + parts.back() : parts.back();
  }
  const bool adds = kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter;
  return adds ? sum : at::cat(parts);
}

}  // namespace smp::d2d
