// d2d/wires/neuron/neuron_gathers.h: bytes of two cores, exchanged by a collective of the two,
// which is how NeuronLink is reached. Threads: the rank's thread only; nothing here blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "d2d/wires/neuron/neuron_places.h"
#include "d2d/wires/neuron/neuron_requests.h"

namespace smp::d2d {

/// All-gathers of pairs, one at a time for a core: those of a core are done one after the other, so
/// a second one could only wait behind the first, for whichever rank is late. A gather takes what
/// this core has in its slot to the other one, and the other's here, in sizes that are powers of
/// two. A collective that was prepared is good for one time (the runtime frees it), so only tensors
/// are made once.
///
/// In turn: load(), or nothing; enter(), on both sides; unload(), or nothing. Each is over when
/// done() says so.
class NeuronGathers {
 public:
  static constexpr std::size_t kLeast = 512;

  /// Takes three times `bytes` of the core's memory.
  /// @param runtime   outlives this
  /// @param bytes     of a slot, a power of two, at least kLeast
  /// @param patience  with the other side of a gather
  /// @throws ResourceError  the core has less.
  NeuronGathers(NeuronRuntime& runtime, RelativeCore core, std::size_t bytes,
                base::Nanoseconds patience);
  /// Waits for what is under way, for a while; memory that may still be used is not freed.
  ~NeuronGathers();
  NeuronGathers(const NeuronGathers&) = delete;
  NeuronGathers& operator=(const NeuronGathers&) = delete;

  /// Joins the cores of the job. All their ranks call it, and some may wait for the others.
  /// @param number  this core's, of `all`
  /// @throws PeerLostError  the runtime refuses; says which variable it needs.
  void join(int number, int all);

  std::size_t slot_bytes() const noexcept { return bytes_; }
  bool idle() const noexcept { return under_way_ == nullptr; }
  RelativeCore core() const noexcept { return requests_.core(); }

  // Each starts one of the three while nothing is under way. Returns false if the queue of the core
  // is full: try again later.

  [[nodiscard]] bool load(const NeuronPlace& from, std::size_t size);
  /// @param peer  the other core's number, as in join()
  /// @param size  of the larger of the two
  [[nodiscard]] bool enter(int peer, std::size_t size, const std::string& peer_name);
  /// @param size  as in enter(); @param to  where so many as `mine` of the peer's bytes go
  [[nodiscard]] bool unload(int peer, std::size_t size, const NeuronPlace& to, std::size_t mine);
  /// Returns true once what was started is done. @throws PeerLostError  it went wrong, or the other
  /// side has not come in time.
  bool done();

 private:
  static constexpr std::size_t kSizes = 24;
  struct Slice {  // the beginning of a slot, of a power of two
    NeuronLibrary::Tensor *input = nullptr, *output = nullptr;
  };
  /// Nobody says when the runtime reads the arguments: they stay as long as the request.
  struct Call : NeuronRequest {
    std::array<std::uint32_t, 2> members{};
    NeuronLibrary::Group group{};
    Slice tensors{};
    NeuronLibrary::TensorList inputs{}, outputs{};
  };

  void make_slots();
  std::size_t rounded(std::size_t size) const noexcept;
  bool copy(const NeuronPlace& from, const NeuronPlace& to, std::size_t size, const char* doing);
  bool started(int status, const char* call);
  std::string describe() const;
  void free_slots() noexcept;

  NeuronRequests requests_;
  std::size_t bytes_;
  base::Nanoseconds patience_;
  NeuronLibrary::Tensor *input_ = nullptr, *output_ = nullptr;
  std::array<Slice, kSizes> slices_{};
  int number_ = -1, all_ = 0;
  void* prepared_ = nullptr;  // and not scheduled yet
  std::unique_ptr<Call> request_ = std::make_unique<Call>();
  NeuronRequest* under_way_ = nullptr;
  const char* doing_ = "";
  const std::string* peer_name_ = nullptr;  // of a collective that is under way
};

}  // namespace smp::d2d
