// d2d/channel/frame_decoder.cpp: see the header, and frame_layout.h.
#include "d2d/channel/frame_decoder.h"

#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "d2d/channel/frame_layout.h"
#include "d2d/lend/loans.h"
#include "d2d/tensors/tensor_data.h"

namespace smp::d2d {
namespace {

#define SMP_WELL_FORMED(condition, ...)                                                        \
  SMP_REQUIRE_AS(InternalError, condition, "a frame that arrived is malformed: ", __VA_ARGS__, \
                 "; do all ranks run the same build?")

template <class Part>
Part read_part(std::span<const std::byte> bytes, std::size_t offset) {
  Part part;
  std::memcpy(&part, bytes.data() + offset, sizeof part);
  return part;
}

FramePrefix read_prefix(std::span<const std::byte> control) {
  SMP_WELL_FORMED(control.size() >= sizeof(FramePrefix), "it has only ", control.size(), " bytes");
  const auto prefix = read_part<FramePrefix>(control, 0);
  SMP_WELL_FORMED(prefix.magic == kFrameMagic, "it starts with ", prefix.magic, " instead of ",
                  kFrameMagic, ", the mark of this version");
  SMP_WELL_FORMED(prefix.port < kPorts && !(prefix.zero[0] | prefix.zero[1] | prefix.zero[2]),
                  "it is for port ", int{prefix.port});
  std::uint64_t rest = control.size() - sizeof prefix;
  const auto take = [&](std::uint64_t count, std::uint64_t each, const char* what) {
    SMP_WELL_FORMED(count <= rest / each, count, ' ', what, " in a buffer of ", control.size(),
                    " bytes");
    rest -= count * each;
  };
  take(prefix.tensors, sizeof(TensorStub), "tensors");
  take(prefix.dimensions, sizeof(std::int64_t), "dimensions of tensors");
  take(prefix.header_bytes, 1, "bytes of header");
  take(prefix.body_bytes, 1, "bytes of body");
  return prefix;
}

void require_zero_gap(std::span<const std::byte> bytes, std::size_t from, std::size_t to) {
  for (std::size_t i = from; i < to; ++i) {
    SMP_WELL_FORMED(bytes[i] == std::byte{0}, "its gap at ", i, " is not empty");
  }
}

// Reads stubs one after the other, and the tensors they stand for.
class TensorReader {
 public:
  TensorReader(std::span<const std::byte> control, const FramePrefix& prefix,
               const FrameLayout& layout, std::uint64_t limit, const Lending& lending)
      : control_(control),
        layout_(layout),
        next_size_(layout.sizes),
        dimensions_left_(prefix.dimensions),
        data_left_(limit),
        lending_(lending) {}

  at::Tensor read(std::size_t index, std::vector<DataTensor>& data,
                  std::vector<StagedTensor>& staged) {
    const auto stub =
        read_part<TensorStub>(control_, sizeof(FramePrefix) + index * sizeof(TensorStub));
    check_stub(stub);
    if (stub.place == static_cast<std::uint8_t>(TensorPlace::kUndefined)) return {};
    read_sizes(stub.dimensions);
    const std::uint64_t bytes = checked_bytes(stub);
    if (stub.staged != 0) staged.push_back({index, device_of(stub)});
    if (stub.place == static_cast<std::uint8_t>(TensorPlace::kInline))
      return read_inline(stub, bytes);
    SMP_WELL_FORMED(bytes > (is_for_host(stub) ? kInlineBytes : 0), "a tensor of ", bytes,
                    " bytes on the data plane");
    if (stub.place == static_cast<std::uint8_t>(TensorPlace::kLent)) return borrow(stub);
    data_left_ -= bytes;
    const MemoryKind kind = is_for_host(stub) ? MemoryKind::kHost : *memory_kind(device_of(stub));
    data.push_back({index, stub.where, stub.wire, kind, tensor_of(stub)});
    return data.back().tensor;
  }

  // All that was announced has been read, and nothing is behind it.
  void finish() const {
    SMP_WELL_FORMED(dimensions_left_ == 0, dimensions_left_, " sizes belong to no tensor");
    const std::size_t expected = layout_.inline_section + inline_bytes_;
    SMP_WELL_FORMED(expected == control_.size(), "it has ", control_.size(), " bytes instead of ",
                    expected);
  }

 private:
  static c10::DeviceType device_of(const TensorStub& stub) {
    return static_cast<c10::DeviceType>(stub.device);
  }
  // Whether its elements come to host memory.
  static bool is_for_host(const TensorStub& stub) {
    return stub.staged != 0 || device_of(stub) == c10::DeviceType::CPU;
  }

  static void check_device(const TensorStub& stub) {
    const bool known = stub.device < static_cast<int>(c10::COMPILE_TIME_MAX_DEVICE_TYPES) &&
                       c10::isValidDeviceType(device_of(stub)) && stub.staged <= 1;
    SMP_WELL_FORMED(known, "a tensor on device ", int{stub.device});
    const bool on_host = device_of(stub) == c10::DeviceType::CPU;
    SMP_WELL_FORMED(!on_host || stub.staged == 0, "a tensor of host memory comes through it");
    const bool direct = !on_host && stub.staged == 0;
    SMP_WELL_FORMED(!direct || (stub.place == static_cast<std::uint8_t>(TensorPlace::kData) &&
                                memory_kind(device_of(stub))),
                    "a tensor on device ", int{stub.device}, " is at place ", int{stub.place});
  }

  static void check_stub(const TensorStub& stub) {
    SMP_WELL_FORMED(!(stub.zero[0] | stub.zero[1]) &&
                        stub.place <= static_cast<std::uint8_t>(TensorPlace::kLent),
                    "a tensor is at place ", int{stub.place});
    check_device(stub);
    const bool defined = stub.place != static_cast<std::uint8_t>(TensorPlace::kUndefined);
    SMP_WELL_FORMED(defined || (stub.where == 0 && stub.dtype == 0 && stub.dimensions == 0 &&
                                stub.device == 0 && stub.staged == 0),
                    "an undefined tensor has ", int{stub.dimensions}, " dimensions");
    SMP_WELL_FORMED(stub.place == static_cast<std::uint8_t>(TensorPlace::kData) || stub.wire == 0,
                    "wire ", int{stub.wire}, " for a tensor that needs none");
    SMP_WELL_FORMED(!defined || (stub.dtype < static_cast<int>(c10::ScalarType::NumOptions) &&
                                 is_sendable_dtype(static_cast<c10::ScalarType>(stub.dtype))),
                    "unknown dtype ", int{stub.dtype});
    SMP_WELL_FORMED(stub.dimensions <= kMostDimensions, int{stub.dimensions}, " dimensions");
  }

  void read_sizes(std::size_t dimensions) {
    SMP_WELL_FORMED(dimensions <= dimensions_left_, "a tensor has ", dimensions,
                    " dimensions, but only ", dimensions_left_, " sizes are left");
    dimensions_left_ -= dimensions;
    dimensions_ = dimensions;
    const std::size_t bytes = dimensions * sizeof(std::int64_t);
    if (bytes > 0) std::memcpy(sizes_.data(), control_.data() + next_size_, bytes);
    next_size_ += bytes;
  }

  // Zero sizes count as one in the bound, so that strides cannot overflow either.
  std::uint64_t checked_bytes(const TensorStub& stub) const {
    bool empty = false;
    std::uint64_t bytes = c10::elementSize(static_cast<c10::ScalarType>(stub.dtype));
    for (const std::int64_t size : sizes()) {
      SMP_WELL_FORMED(size >= 0, "a dimension of size ", size);
      if (size == 0) {
        empty = true;
        continue;
      }
      SMP_WELL_FORMED(static_cast<std::uint64_t>(size) <= data_left_ / bytes,
                      "a tensor of more than ", data_left_, " bytes");
      bytes *= static_cast<std::uint64_t>(size);
    }
    return empty ? 0 : bytes;
  }

  at::Tensor read_inline(const TensorStub& stub, std::uint64_t bytes) {
    const std::span<const std::byte> section = control_.subspan(layout_.inline_section);
    SMP_WELL_FORMED(bytes <= kInlineBytes && stub.where == aligned_in_frame(inline_bytes_) &&
                        stub.where <= section.size() && bytes <= section.size() - stub.where,
                    "an inline tensor of ", bytes, " bytes at ", stub.where);
    require_zero_gap(section, inline_bytes_, stub.where);
    inline_bytes_ = stub.where + bytes;
    at::Tensor tensor = tensor_of(stub);
    if (bytes > 0) {
      std::memcpy(tensor.mutable_data_ptr(), section.data() + stub.where, bytes);
    }
    return tensor;
  }

  at::Tensor borrow(const TensorStub& stub) const {
    SMP_WELL_FORMED(lending_.loans != nullptr, "it lends a tensor where nobody borrows");
    return lending_.loans->borrow(lending_.peer, stub.where, sizes(),
                                  static_cast<c10::ScalarType>(stub.dtype));
  }

  c10::IntArrayRef sizes() const { return {sizes_.data(), dimensions_}; }
  at::Tensor tensor_of(const TensorStub& stub) const {
    return new_tensor(sizes(), static_cast<c10::ScalarType>(stub.dtype),
                      is_for_host(stub) ? c10::DeviceType::CPU : device_of(stub));
  }

  std::span<const std::byte> control_;
  const FrameLayout& layout_;
  std::size_t next_size_;
  std::size_t dimensions_left_;
  std::uint64_t data_left_;  // bytes that may still be announced
  Lending lending_;
  std::size_t inline_bytes_ = 0;
  std::size_t dimensions_ = 0;  // of the tensor at hand
  std::array<std::int64_t, kMostDimensions> sizes_;
};

}  // namespace

ReadFrame decode_frame(std::span<const std::byte> control, std::vector<DataTensor>& data,
                       const FrameLimits& limits, const Lending& lending) {
  data.clear();
  const FramePrefix prefix = read_prefix(control);
  const FrameLayout layout(prefix);
  SMP_WELL_FORMED(layout.inline_section <= control.size(), "it ends within its padding");
  require_zero_gap(control, layout.end_of_body, layout.inline_section);
  ReadFrame frame{static_cast<Port>(prefix.port),
                  control.subspan(layout.header, prefix.header_bytes),
                  control.subspan(layout.body, prefix.body_bytes),
                  {},
                  {}};
  frame.tensors.reserve(prefix.tensors);
  TensorReader reader(control, prefix, layout, limits.tensor_bytes, lending);
  for (std::size_t i = 0; i < prefix.tensors; ++i) {
    frame.tensors.push_back(reader.read(i, data, frame.staged));
  }
  reader.finish();
  return frame;
}

#undef SMP_WELL_FORMED

}  // namespace smp::d2d
