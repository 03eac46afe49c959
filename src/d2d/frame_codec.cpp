// d2d/frame_codec.cpp: layout and checks of control buffers.
#include "d2d/frame_codec.h"

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/home_device.h"
#include "d2d/loans.h"
#include "d2d/tensor_data.h"

namespace smp::d2d {
namespace {

static_assert(std::endian::native == std::endian::little, "control buffers are little endian");

constexpr std::uint32_t kMagic = 0x33504d53;  // "SMP3": the last digit is the layout's version
constexpr std::size_t kAlignment = 16;
constexpr std::size_t kLongestControl = std::size_t{1} << 30;
constexpr std::size_t kMostDimensions = 64;  // as in LibTorch's iterators

struct Prefix {
  std::uint32_t magic;
  std::uint32_t tensors;
  std::uint64_t header_bytes;
  std::uint64_t body_bytes;
  std::uint32_t dimensions;  // of all tensors
  std::uint8_t port;
  std::uint8_t zero[3];
};
static_assert(sizeof(Prefix) == 32);

enum class Place : std::uint8_t { kUndefined, kInline, kData, kLent };

struct Stub {
  // Inline: bytes from the start of the inline section; data: the transfer; lent: the loan.
  std::uint64_t where;
  std::uint8_t place;
  std::uint8_t dtype;  // a c10::ScalarType
  std::uint8_t dimensions;
  std::uint8_t wire;
  std::uint8_t device;  // a c10::DeviceType
  std::uint8_t staged;  // 1: it comes through host memory
  std::uint8_t zero[2];
};
static_assert(sizeof(Stub) == 16);

constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) & ~(kAlignment - 1);
}

// Where the parts of a control buffer begin.
struct Layout {
  std::size_t sizes, header, body, end_of_body, inline_section;

  explicit Layout(const Prefix& prefix)
      : sizes(sizeof(Prefix) + sizeof(Stub) * prefix.tensors),
        header(sizes + sizeof(std::int64_t) * prefix.dimensions),
        body(header + prefix.header_bytes),
        end_of_body(body + prefix.body_bytes),
        inline_section(aligned(end_of_body)) {}
};

// ---- writing ----

// Bytes of `tensor` when its elements are adjacent.
std::size_t bytes_of(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel()) * tensor.itemsize();
}

bool is_on_host(const at::Tensor& tensor) { return tensor.device().is_cpu(); }

// Whether `tensor` has to be copied to host memory first: wires know the streams of one device.
bool is_staged(const at::Tensor& tensor, const DataWires& wires) {
  if (is_on_host(tensor)) return false;
  const auto kind = memory_kind(tensor.device().type());
  return !kind || wires[static_cast<std::size_t>(*kind)] == kNoWire ||
         tensor.device() != base::home_device();
}

bool is_inline(const at::Tensor& tensor, const DataWires& wires) {
  const std::size_t bytes = bytes_of(tensor);
  if (bytes == 0) return true;
  return bytes <= kInlineBytes && (is_on_host(tensor) || is_staged(tensor, wires));
}

struct Measure {
  std::uint32_t dimensions = 0;
  std::size_t inline_bytes = 0;
};

Measure checked_measure(c10::ArrayRef<at::Tensor> tensors, const DataWires& wires) {
  Measure measure;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    check_sendable(tensors[i], i);
    SMP_REQUIRE_AS(UnsupportedError, tensors[i].dim() <= static_cast<int>(kMostDimensions),
                   "sending tensor ", i, ": it has ", tensors[i].dim(), " dimensions, at most ",
                   kMostDimensions, " are possible; reshape it first.");
    measure.dimensions += static_cast<std::uint32_t>(tensors[i].dim());
    if (is_inline(tensors[i], wires)) {
      measure.inline_bytes = aligned(measure.inline_bytes) + bytes_of(tensors[i]);
    }
  }
  return measure;
}

void zero_gap(std::byte* start, std::size_t from, std::size_t to) {
  if (from < to) std::memset(start + from, 0, to - from);
}

// Writes stubs, sizes and inline tensors one after the other.
class TensorWriter {
 public:
  TensorWriter(std::byte* control, const Layout& layout)
      : stubs_(control + sizeof(Prefix)),
        sizes_(control + layout.sizes),
        inline_section_(control + layout.inline_section) {}

  void put_undefined() { put_stub({}); }
  void put_inline(const at::Tensor& tensor) {
    const std::size_t offset = aligned(inline_bytes_);
    zero_gap(inline_section_, inline_bytes_, offset);
    put_stub(stub_of(tensor, Place::kInline, offset, 0, !is_on_host(tensor)));
    put_sizes(tensor);
    const std::size_t bytes = bytes_of(tensor);
    inline_bytes_ = offset + bytes;
    if (bytes == 0) return;
    const c10::MaybeOwned<at::Tensor> elements = adjacent(tensor);
    std::memcpy(inline_section_ + offset, elements->const_data_ptr(), bytes);
  }
  void put_data(const at::Tensor& tensor, TransferId transfer, std::uint8_t wire, bool staged) {
    put_stub(stub_of(tensor, Place::kData, transfer, wire, staged));
    put_sizes(tensor);
  }
  void put_lent(const at::Tensor& tensor, LoanId loan, bool staged) {
    put_stub(stub_of(tensor, Place::kLent, loan, 0, staged));
    put_sizes(tensor);
  }

 private:
  static c10::MaybeOwned<at::Tensor> adjacent(const at::Tensor& tensor) {
    if (!is_on_host(tensor)) return c10::MaybeOwned<at::Tensor>::owned(on_host(tensor));
    if (is_plain(tensor)) return c10::MaybeOwned<at::Tensor>::borrowed(tensor);
    return c10::MaybeOwned<at::Tensor>::owned(contiguous_data(tensor));
  }
  static Stub stub_of(const at::Tensor& tensor, Place place, std::uint64_t where, std::uint8_t wire,
                      bool staged) {
    return {where,
            static_cast<std::uint8_t>(place),
            static_cast<std::uint8_t>(tensor.scalar_type()),
            static_cast<std::uint8_t>(tensor.dim()),
            wire,
            static_cast<std::uint8_t>(tensor.device().type()),
            static_cast<std::uint8_t>(staged ? 1 : 0),
            {}};
  }
  void put_stub(const Stub& stub) {
    std::memcpy(stubs_, &stub, sizeof stub);
    stubs_ += sizeof stub;
  }
  void put_sizes(const at::Tensor& tensor) {
    const c10::IntArrayRef sizes = tensor.sizes();
    const std::size_t bytes = sizes.size() * sizeof(std::int64_t);
    if (bytes > 0) std::memcpy(sizes_, sizes.data(), bytes);
    sizes_ += bytes;
  }

  std::byte* stubs_;
  std::byte* sizes_;
  std::byte* inline_section_;
  std::size_t inline_bytes_ = 0;
};

Prefix prefix_of(const FrameToSend& frame, const Measure& measure) {
  return {kMagic,
          static_cast<std::uint32_t>(frame.tensors.size()),
          frame.header.size(),
          frame.body.size(),
          measure.dimensions,
          static_cast<std::uint8_t>(frame.port),
          {}};
}

/// What one frame lends, which nobody borrows if the frame is not sent after all.
class FrameLoans {
 public:
  explicit FrameLoans(Loans* loans) : loans_(loans) {}
  FrameLoans(const FrameLoans&) = delete;
  FrameLoans& operator=(const FrameLoans&) = delete;
  ~FrameLoans() {
    for (const LoanId id : lent_) loans_->withdraw(id);
  }

  std::optional<LoanId> lend(const at::Tensor& elements) {
    auto id = loans_ == nullptr ? std::nullopt : loans_->lend(elements);
    if (id) lent_.push_back(*id);
    return id;
  }
  void keep() noexcept { lent_.clear(); }

 private:
  Loans* loans_;
  std::vector<LoanId> lent_;
};

void write_texts(const FrameToSend& frame, const Prefix& prefix, const Layout& layout,
                 std::byte* control) {
  std::memcpy(control, &prefix, sizeof prefix);
  if (!frame.header.empty()) {
    std::memcpy(control + layout.header, frame.header.data(), frame.header.size());
  }
  if (!frame.body.empty()) {
    std::memcpy(control + layout.body, frame.body.data(), frame.body.size());
  }
}

}  // namespace

std::optional<MemoryKind> memory_kind(c10::DeviceType device) noexcept {
  if (device == c10::DeviceType::CPU) return MemoryKind::kHost;
  if (device == c10::DeviceType::CUDA) return MemoryKind::kCuda;
  return std::nullopt;
}

void encode_frame(const FrameToSend& frame, const DataWires& wires, TransferId& next_transfer,
                  ByteBuffer& control, std::vector<DataTensor>& data, Loans* loans) {
  data.clear();
  const Measure measure = checked_measure(frame.tensors, wires);
  const Prefix prefix = prefix_of(frame, measure);
  const Layout layout(prefix);
  const std::size_t total = layout.inline_section + measure.inline_bytes;
  SMP_REQUIRE(total <= kLongestControl, "sending a frame: header, body and small tensors have ",
              total, " bytes, at most ", kLongestControl, " are possible; send less at once.");
  control.resize(total);
  write_texts(frame, prefix, layout, control.data());
  zero_gap(control.data(), layout.end_of_body, layout.inline_section);
  TensorWriter writer(control.data(), layout);
  FrameLoans lent(loans);  // a tensor further on may be too large to be copied
  for (std::size_t i = 0; i < frame.tensors.size(); ++i) {
    const at::Tensor& tensor = frame.tensors[i];
    if (!tensor.defined()) {
      writer.put_undefined();
    } else if (is_inline(tensor, wires)) {
      writer.put_inline(tensor);
    } else {
      const bool staged = is_staged(tensor, wires);
      at::Tensor elements = staged ? on_host(tensor) : contiguous_data(detached(tensor));
      // Networks cannot register memory that may not be written to; and a copy can be lent.
      if (Loans::is_borrowed(elements)) elements = independent_copy(elements);
      if (const auto loan = lent.lend(elements)) {
        writer.put_lent(tensor, *loan, staged);
        continue;
      }
      const MemoryKind kind = *memory_kind(elements.device().type());
      const std::uint8_t wire = wires[static_cast<std::size_t>(kind)];
      writer.put_data(tensor, next_transfer, wire, staged);
      data.push_back({i, next_transfer++, wire, kind, std::move(elements)});
    }
  }
  lent.keep();
}

// ---- reading ----

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

Prefix read_prefix(std::span<const std::byte> control) {
  SMP_WELL_FORMED(control.size() >= sizeof(Prefix), "it has only ", control.size(), " bytes");
  const auto prefix = read_part<Prefix>(control, 0);
  SMP_WELL_FORMED(prefix.magic == kMagic, "it starts with ", prefix.magic, " instead of ", kMagic,
                  ", the mark of this version");
  SMP_WELL_FORMED(prefix.port < kPorts && !(prefix.zero[0] | prefix.zero[1] | prefix.zero[2]),
                  "it is for port ", int{prefix.port});
  std::uint64_t rest = control.size() - sizeof prefix;
  const auto take = [&](std::uint64_t count, std::uint64_t each, const char* what) {
    SMP_WELL_FORMED(count <= rest / each, count, ' ', what, " in a buffer of ", control.size(),
                    " bytes");
    rest -= count * each;
  };
  take(prefix.tensors, sizeof(Stub), "tensors");
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
  TensorReader(std::span<const std::byte> control, const Prefix& prefix, const Layout& layout,
               std::uint64_t limit, const Lending& lending)
      : control_(control),
        layout_(layout),
        next_size_(layout.sizes),
        dimensions_left_(prefix.dimensions),
        data_left_(limit),
        lending_(lending) {}

  at::Tensor read(std::size_t index, std::vector<DataTensor>& data,
                  std::vector<StagedTensor>& staged) {
    const auto stub = read_part<Stub>(control_, sizeof(Prefix) + index * sizeof(Stub));
    check_stub(stub);
    if (stub.place == static_cast<std::uint8_t>(Place::kUndefined)) return {};
    read_sizes(stub.dimensions);
    const std::uint64_t bytes = checked_bytes(stub);
    if (stub.staged != 0) staged.push_back({index, device_of(stub)});
    if (stub.place == static_cast<std::uint8_t>(Place::kInline)) return read_inline(stub, bytes);
    SMP_WELL_FORMED(bytes > (is_for_host(stub) ? kInlineBytes : 0), "a tensor of ", bytes,
                    " bytes on the data plane");
    if (stub.place == static_cast<std::uint8_t>(Place::kLent)) return borrow(stub);
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
  static c10::DeviceType device_of(const Stub& stub) {
    return static_cast<c10::DeviceType>(stub.device);
  }
  // Whether its elements come to host memory.
  static bool is_for_host(const Stub& stub) {
    return stub.staged != 0 || device_of(stub) == c10::DeviceType::CPU;
  }

  static void check_device(const Stub& stub) {
    const bool known = stub.device < static_cast<int>(c10::COMPILE_TIME_MAX_DEVICE_TYPES) &&
                       c10::isValidDeviceType(device_of(stub)) && stub.staged <= 1;
    SMP_WELL_FORMED(known, "a tensor on device ", int{stub.device});
    const bool on_host = device_of(stub) == c10::DeviceType::CPU;
    SMP_WELL_FORMED(!on_host || stub.staged == 0, "a tensor of host memory comes through it");
    const bool direct = !on_host && stub.staged == 0;
    SMP_WELL_FORMED(!direct || (stub.place == static_cast<std::uint8_t>(Place::kData) &&
                                memory_kind(device_of(stub))),
                    "a tensor on device ", int{stub.device}, " is at place ", int{stub.place});
  }

  static void check_stub(const Stub& stub) {
    SMP_WELL_FORMED(
        !(stub.zero[0] | stub.zero[1]) && stub.place <= static_cast<std::uint8_t>(Place::kLent),
        "a tensor is at place ", int{stub.place});
    check_device(stub);
    const bool defined = stub.place != static_cast<std::uint8_t>(Place::kUndefined);
    SMP_WELL_FORMED(defined || (stub.where == 0 && stub.dtype == 0 && stub.dimensions == 0 &&
                                stub.device == 0 && stub.staged == 0),
                    "an undefined tensor has ", int{stub.dimensions}, " dimensions");
    SMP_WELL_FORMED(stub.place == static_cast<std::uint8_t>(Place::kData) || stub.wire == 0,
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
  std::uint64_t checked_bytes(const Stub& stub) const {
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

  at::Tensor read_inline(const Stub& stub, std::uint64_t bytes) {
    const std::span<const std::byte> section = control_.subspan(layout_.inline_section);
    SMP_WELL_FORMED(bytes <= kInlineBytes && stub.where == aligned(inline_bytes_) &&
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

  at::Tensor borrow(const Stub& stub) const {
    SMP_WELL_FORMED(lending_.loans != nullptr, "it lends a tensor where nobody borrows");
    return lending_.loans->borrow(lending_.peer, stub.where, sizes(),
                                  static_cast<c10::ScalarType>(stub.dtype));
  }

  c10::IntArrayRef sizes() const { return {sizes_.data(), dimensions_}; }
  at::Tensor tensor_of(const Stub& stub) const {
    return new_tensor(sizes(), static_cast<c10::ScalarType>(stub.dtype),
                      is_for_host(stub) ? c10::DeviceType::CPU : device_of(stub));
  }

  std::span<const std::byte> control_;
  const Layout& layout_;
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
  const Prefix prefix = read_prefix(control);
  const Layout layout(prefix);
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
