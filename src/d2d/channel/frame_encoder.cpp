// d2d/channel/frame_encoder.cpp: see the header, and frame_layout.h.
#include "d2d/channel/frame_encoder.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/machine/home_device.h"
#include "d2d/channel/frame_layout.h"
#include "d2d/lend/loans.h"
#include "d2d/tensors/tensor_data.h"

namespace smp::d2d {
namespace {

// Bytes of `tensor` when its elements are adjacent.
std::size_t bytes_of(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel()) * tensor.itemsize();
}

bool is_on_host(const at::Tensor& tensor) { return tensor.device().is_cpu(); }

// Whether `tensor` has to be copied to host memory first: wires know the streams of one device of
// a kind. That of a kind on which this process does not compute is its only one.
bool is_staged(const at::Tensor& tensor, const DataWires& wires) {
  if (is_on_host(tensor)) return false;
  const auto kind = memory_kind(tensor.device().type());
  return !kind || wires[static_cast<std::size_t>(*kind)] == kNoWire ||
         tensor.device() != base::home_of(tensor.device().type());
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
      measure.inline_bytes = aligned_in_frame(measure.inline_bytes) + bytes_of(tensors[i]);
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
  TensorWriter(std::byte* control, const FrameLayout& layout)
      : stubs_(control + sizeof(FramePrefix)),
        sizes_(control + layout.sizes),
        inline_section_(control + layout.inline_section) {}

  void put_undefined() { put_stub({}); }
  void put_inline(const at::Tensor& tensor) {
    const std::size_t offset = aligned_in_frame(inline_bytes_);
    zero_gap(inline_section_, inline_bytes_, offset);
    put_stub(stub_of(tensor, TensorPlace::kInline, offset, 0, !is_on_host(tensor)));
    put_sizes(tensor);
    const std::size_t bytes = bytes_of(tensor);
    inline_bytes_ = offset + bytes;
    if (bytes == 0) return;
    const c10::MaybeOwned<at::Tensor> elements = adjacent(tensor);
    std::memcpy(inline_section_ + offset, elements->const_data_ptr(), bytes);
  }
  void put_data(const at::Tensor& tensor, TransferId transfer, std::uint8_t wire, bool staged) {
    put_stub(stub_of(tensor, TensorPlace::kData, transfer, wire, staged));
    put_sizes(tensor);
  }
  void put_lent(const at::Tensor& tensor, LoanId loan, bool staged) {
    put_stub(stub_of(tensor, TensorPlace::kLent, loan, 0, staged));
    put_sizes(tensor);
  }

 private:
  static c10::MaybeOwned<at::Tensor> adjacent(const at::Tensor& tensor) {
    if (!is_on_host(tensor)) return c10::MaybeOwned<at::Tensor>::owned(on_host(tensor));
    if (is_plain(tensor)) return c10::MaybeOwned<at::Tensor>::borrowed(tensor);
    return c10::MaybeOwned<at::Tensor>::owned(contiguous_data(tensor));
  }
  static TensorStub stub_of(const at::Tensor& tensor, TensorPlace place, std::uint64_t where,
                            std::uint8_t wire, bool staged) {
    return {where,
            static_cast<std::uint8_t>(place),
            static_cast<std::uint8_t>(tensor.scalar_type()),
            static_cast<std::uint8_t>(tensor.dim()),
            wire,
            static_cast<std::uint8_t>(tensor.device().type()),
            static_cast<std::uint8_t>(staged ? 1 : 0),
            {}};
  }
  void put_stub(const TensorStub& stub) {
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

FramePrefix prefix_of(const FrameToSend& frame, const Measure& measure) {
  return {kFrameMagic,
          static_cast<std::uint32_t>(frame.tensors.size()),
          frame.header.size(),
          frame.body.size(),
          measure.dimensions,
          static_cast<std::uint8_t>(frame.port),
          {}};
}

void write_texts(const FrameToSend& frame, const FramePrefix& prefix, const FrameLayout& layout,
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

void encode_frame(const FrameToSend& frame, const DataWires& wires, TransferId& next_transfer,
                  ByteBuffer& control, std::vector<DataTensor>& data, FrameLoans& lent) {
  data.clear();
  const Measure measure = checked_measure(frame.tensors, wires);
  const FramePrefix prefix = prefix_of(frame, measure);
  const FrameLayout layout(prefix);
  const std::size_t total = layout.inline_section + measure.inline_bytes;
  SMP_REQUIRE(total <= kLongestControl, "sending a frame: header, body and small tensors have ",
              total, " bytes, at most ", kLongestControl, " are possible; send less at once.");
  control.resize(total);
  write_texts(frame, prefix, layout, control.data());
  zero_gap(control.data(), layout.end_of_body, layout.inline_section);
  TensorWriter writer(control.data(), layout);
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
}

void encode_frame(const FrameToSend& frame, const DataWires& wires, TransferId& next_transfer,
                  ByteBuffer& control, std::vector<DataTensor>& data) {
  FrameLoans none(nullptr);
  encode_frame(frame, wires, next_transfer, control, data, none);
}

}  // namespace smp::d2d
