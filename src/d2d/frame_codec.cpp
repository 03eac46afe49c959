// d2d/frame_codec.cpp: layout and checks of control buffers.
#include "d2d/frame_codec.h"

#include <cstring>

#include "base/check.h"
#include "d2d/frame.pb.h"
#include "d2d/tensor_data.h"

namespace smp::d2d {
namespace {

constexpr std::uint32_t kMagic = 0x31504d53;  // "SMP1": the last digit is the layout's version
constexpr std::size_t kAlignment = 16;
constexpr std::size_t kLongestControl = std::size_t{1} << 30;
constexpr int kMostDimensions = 64;  // as in LibTorch's iterators

struct Prefix {
  std::uint32_t magic;
  std::uint32_t stub_bytes;
  std::uint64_t header_bytes;
};
static_assert(sizeof(Prefix) == 16);

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) & ~(kAlignment - 1); }

// Where the parts of a control buffer lie.
struct Layout {
  std::size_t stubs = sizeof(Prefix);
  std::size_t header = 0;
  std::size_t inline_section = 0;

  Layout(std::size_t stub_bytes, std::size_t header_bytes)
      : header(stubs + stub_bytes), inline_section(aligned(header + header_bytes)) {}
};

#define SMP_WELL_FORMED(condition, ...)                                                        \
  SMP_REQUIRE_AS(InternalError, condition, "a frame that arrived is malformed: ", __VA_ARGS__, \
                 "; do all ranks run the same build?")

Prefix read_prefix(std::span<const std::byte> control) {
  Prefix prefix;
  SMP_WELL_FORMED(control.size() >= sizeof prefix, "it has only ", control.size(), " bytes");
  std::memcpy(&prefix, control.data(), sizeof prefix);
  SMP_WELL_FORMED(prefix.magic == kMagic, "it starts with ", prefix.magic, " instead of ", kMagic);
  const std::size_t rest = control.size() - sizeof prefix;
  SMP_WELL_FORMED(prefix.stub_bytes <= rest && prefix.header_bytes <= rest - prefix.stub_bytes,
                  prefix.stub_bytes, " bytes of stubs and ", prefix.header_bytes,
                  " of header in a buffer of ", control.size());
  return prefix;
}

// Bytes of the stub's tensor. Zero sizes count as one in the bound, so that strides cannot
// overflow either.
std::uint64_t checked_tensor_bytes(const wire::TensorStub& stub, std::uint64_t limit) {
  SMP_WELL_FORMED(stub.dtype() < static_cast<std::uint32_t>(c10::ScalarType::NumOptions) &&
                      is_sendable_dtype(static_cast<c10::ScalarType>(stub.dtype())),
                  "unknown dtype ", stub.dtype());
  SMP_WELL_FORMED(stub.sizes_size() <= kMostDimensions, stub.sizes_size(), " dimensions");
  bool empty = false;
  std::uint64_t bytes = c10::elementSize(static_cast<c10::ScalarType>(stub.dtype()));
  for (const std::int64_t size : stub.sizes()) {
    SMP_WELL_FORMED(size >= 0, "a dimension of size ", size);
    if (size == 0) {
      empty = true;
      continue;
    }
    SMP_WELL_FORMED(static_cast<std::uint64_t>(size) <= limit / bytes, "a tensor of more than ",
                    limit, " bytes");
    bytes *= static_cast<std::uint64_t>(size);
  }
  return empty ? 0 : bytes;
}

at::Tensor tensor_of(const wire::TensorStub& stub) {
  return new_tensor(at::IntArrayRef(stub.sizes().data(), stub.sizes().size()),
                    static_cast<c10::ScalarType>(stub.dtype()));
}

}  // namespace

struct FrameCodec::Scratch {
  struct Inline {
    std::size_t offset;
    at::Tensor tensor;
  };
  wire::TensorStubs stubs;
  std::vector<Inline> inlined;
  std::size_t inline_bytes = 0;

  void clear() {
    stubs.clear_stubs();  // keeps the stub objects
    inlined.clear();
    inline_bytes = 0;
  }
  void describe(const at::Tensor& tensor, std::size_t index, std::uint64_t& next_transfer,
                std::vector<DataTensor>& data);
  void put(at::Tensor&& tensor, wire::TensorStub& stub);
  void write(const Frame& frame, ByteBuffer& control) const;
  std::uint64_t read_tensor(const wire::TensorStub& stub, std::span<const std::byte> inline_section,
                            std::uint64_t limit, at::Tensor& tensor);
};

FrameCodec::FrameCodec(FrameLimits limits)
    : limits_(limits), scratch_(std::make_unique<Scratch>()) {}
FrameCodec::~FrameCodec() = default;

void FrameCodec::Scratch::describe(const at::Tensor& tensor, std::size_t index,
                                   std::uint64_t& next_transfer, std::vector<DataTensor>& data) {
  wire::TensorStub& stub = *stubs.add_stubs();
  if (!tensor.defined()) return;
  check_sendable(tensor, index);
  stub.set_dtype(static_cast<std::uint32_t>(tensor.scalar_type()));
  for (const std::int64_t size : tensor.sizes()) stub.add_sizes(size);
  at::Tensor elements = contiguous_data(tensor);
  if (elements.nbytes() <= kInlineBytes) {
    put(std::move(elements), stub);
  } else {
    stub.set_transfer(next_transfer);
    data.push_back({index, next_transfer++, std::move(elements)});
  }
}

void FrameCodec::Scratch::put(at::Tensor&& tensor, wire::TensorStub& stub) {
  const std::size_t offset = aligned(inline_bytes);
  stub.set_inline_offset(offset);
  inline_bytes = offset + tensor.nbytes();
  inlined.push_back({offset, std::move(tensor)});
}

void FrameCodec::Scratch::write(const Frame& frame, ByteBuffer& control) const {
  const std::size_t stub_bytes = stubs.ByteSizeLong();
  const Layout layout(stub_bytes, frame.header.size());
  const std::size_t total = layout.inline_section + inline_bytes;
  SMP_REQUIRE(total <= kLongestControl, "sending a frame: header and small tensors have ", total,
              " bytes, at most ", kLongestControl, " are possible; send less at once.");
  control.resize(total);
  std::byte* out = control.data();
  const Prefix prefix{kMagic, static_cast<std::uint32_t>(stub_bytes), frame.header.size()};
  std::memcpy(out, &prefix, sizeof prefix);
  stubs.SerializeWithCachedSizesToArray(reinterpret_cast<std::uint8_t*>(out + layout.stubs));
  std::memcpy(out + layout.header, frame.header.data(), frame.header.size());
  for (const Inline& item : inlined) {
    if (item.tensor.nbytes() == 0) continue;
    std::memcpy(out + layout.inline_section + item.offset, item.tensor.const_data_ptr(),
                item.tensor.nbytes());
  }
}

void FrameCodec::encode(const Frame& frame, std::uint64_t& next_transfer, ByteBuffer& control,
                        std::vector<DataTensor>& data) {
  data.clear();
  scratch_->clear();
  for (std::size_t i = 0; i < frame.tensors.size(); ++i) {
    scratch_->describe(frame.tensors[i], i, next_transfer, data);
  }
  scratch_->write(frame, control);
  scratch_->inlined.clear();  // let go of the caller's tensors
}

// Returns the bytes that are still to come on the data plane.
std::uint64_t FrameCodec::Scratch::read_tensor(const wire::TensorStub& stub,
                                               std::span<const std::byte> inline_section,
                                               std::uint64_t limit, at::Tensor& tensor) {
  if (stub.place_case() == wire::TensorStub::PLACE_NOT_SET) return 0;
  const std::uint64_t bytes = checked_tensor_bytes(stub, limit);
  if (stub.place_case() == wire::TensorStub::kTransfer) {
    SMP_WELL_FORMED(bytes > kInlineBytes, "a tensor of ", bytes, " bytes on the data plane");
    tensor = tensor_of(stub);
    return bytes;
  }
  const std::uint64_t offset = stub.inline_offset();
  SMP_WELL_FORMED(bytes <= kInlineBytes && offset == aligned(inline_bytes) &&
                      offset <= inline_section.size() && bytes <= inline_section.size() - offset,
                  "an inline tensor of ", bytes, " bytes at ", offset);
  inline_bytes = offset + bytes;
  tensor = tensor_of(stub);
  if (bytes > 0) std::memcpy(tensor.mutable_data_ptr(), inline_section.data() + offset, bytes);
  return 0;
}

Frame FrameCodec::decode(std::span<const std::byte> control, std::vector<DataTensor>& data) {
  data.clear();
  scratch_->clear();
  const Prefix prefix = read_prefix(control);
  const Layout layout(prefix.stub_bytes, prefix.header_bytes);
  SMP_WELL_FORMED(layout.inline_section <= control.size(), "it ends within its padding");
  wire::TensorStubs& stubs = scratch_->stubs;
  SMP_WELL_FORMED(prefix.stub_bytes == 0 ||
                      stubs.ParseFromArray(control.data() + layout.stubs, prefix.stub_bytes),
                  "its tensor stubs cannot be read");
  Frame frame;
  frame.header.assign(reinterpret_cast<const char*>(control.data() + layout.header),
                      prefix.header_bytes);
  frame.tensors.resize(stubs.stubs_size());
  std::uint64_t limit = limits_.tensor_bytes;
  for (int i = 0; i < stubs.stubs_size(); ++i) {
    const wire::TensorStub& stub = stubs.stubs(i);
    at::Tensor& tensor = frame.tensors[i];
    const std::uint64_t bytes =
        scratch_->read_tensor(stub, control.subspan(layout.inline_section), limit, tensor);
    limit -= bytes;
    if (bytes > 0) data.push_back({static_cast<std::size_t>(i), stub.transfer(), tensor});
  }
  SMP_WELL_FORMED(layout.inline_section + scratch_->inline_bytes == control.size(), "it has ",
                  control.size(), " bytes instead of ",
                  layout.inline_section + scratch_->inline_bytes);
  return frame;
}

}  // namespace smp::d2d
