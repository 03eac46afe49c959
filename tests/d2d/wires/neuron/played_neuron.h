// AWS Neuron's runtime, played: one of three releases, of which each is a library of its own.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "base/check.h"
#include "d2d/wires/neuron/neuron_places.h"
#include "d2d/wires/neuron/neuron_runtime.h"
#include "d2d/wires/neuron/played/played_nrt.h"

namespace smp::d2d {

/// The runtimes 2.x that are played: of SDK 2.28, of which each call has one form, of SDK 2.29, of
/// which the asynchronous ones have another, and of SDK 2.32, which may be started again.
inline constexpr int kPlayedReleases[] = {30, 31, 34};

inline std::string played_library(int minor) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  return program.parent_path() / "libnrt" / base::concat("2.", minor) / "libnrt.so.1";
}

/// The library as a process finds it that starts now.
class PlayedNeuron {
 public:
  explicit PlayedNeuron(int minor) : file_(played_library(minor)) {
    library_ = load_neuron(file_.c_str());
    using GetControl = const played::Control* (*)();
    void* const handle = ::dlopen(file_.c_str(), RTLD_NOW | RTLD_NOLOAD);
    get_control_ = reinterpret_cast<GetControl>(::dlsym(handle, "played_nrt"));
    ::dlclose(handle);
    control().start_anew();
    ::setenv("NEURON_RT_ASYNC_SENDRECV_EXPERIMENTAL_ENABLED", "1", 1);
    ::setenv("NEURON_RT_ASYNC_SENDRECV_BOOTSTRAP_PORT", "45645", 1);
    ::setenv("NEURON_RT_ROOT_COMM_ID", "127.0.0.1:45646", 1);
  }
  ~PlayedNeuron() { control().start_anew(); }
  PlayedNeuron(const PlayedNeuron&) = delete;
  PlayedNeuron& operator=(const PlayedNeuron&) = delete;

  NeuronLibrary& library() { return library_; }
  const played::Control& control() const { return *get_control_(); }
  played::Knobs& knobs() const { return *control().knobs; }
  const played::Counters& counters() const { return *control().counters; }
  /// Of `count` cores from number 0 on.
  CoreClaim claim(int count, int first = 0) const { return {first, count, knobs().first_absolute}; }
  /// All that was made is gone, but `tensors`.
  void expect_empty(int tensors = 0) const {
    EXPECT_EQ(counters().tensors, tensors);
    EXPECT_EQ(counters().trackers, 0);
    EXPECT_EQ(counters().requests, 0);
  }

 private:
  std::string file_;
  NeuronLibrary library_;
  const played::Control* (*get_control_)() = nullptr;
};

/// The host's memory, taken for that of a core: tests of wires may look at it.
class HostAsNeuronPlaces final : public NeuronPlaces {
 public:
  HostAsNeuronPlaces(const PlayedNeuron& neuron, RelativeCore core)
      : tensor_(neuron.control().all_host_memory(core.value())), core_(core) {}
  std::optional<NeuronPlace> find(const std::byte* address) const override {
    const auto offset = reinterpret_cast<std::uintptr_t>(address);
    return NeuronPlace{tensor_, offset, SIZE_MAX - offset, core_};
  }

 private:
  NeuronLibrary::Tensor* tensor_;
  RelativeCore core_;
};

}  // namespace smp::d2d
