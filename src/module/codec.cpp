// module/codec.cpp: the parts of smp/codec.h that need no template.
#include "smp/codec.h"

#include "smp/error.h"

namespace smp {
namespace {

enum class ScalarKind : char { kBool, kInteger, kFloat, kComplex };

ScalarKind kind_of(const at::Scalar& scalar) {
  if (scalar.isBoolean()) return ScalarKind::kBool;
  if (scalar.isIntegral(/*includeBool=*/false)) return ScalarKind::kInteger;
  return scalar.isComplex() ? ScalarKind::kComplex : ScalarKind::kFloat;
}

}  // namespace

void Reader::fail(const std::string& what) const {
  throw InternalError(
      "smp internal error (please report): a value that came from another rank "
      "cannot be decoded: " +
      what + " (byte " + std::to_string(offset_) + " of " + std::to_string(packet_.bytes.size()) +
      ", tensor " + std::to_string(next_tensor_) + " of " + std::to_string(packet_.tensors.size()) +
      ")");
}

void Reader::bytes(void* data, std::size_t count) {
  if (count > packet_.bytes.size() - offset_) fail("it is too short");
  std::memcpy(data, packet_.bytes.data() + offset_, count);
  offset_ += count;
}

bool Reader::flag() {
  const char value = raw<char>();
  if (value != 0 && value != 1) fail("a flag is neither 0 nor 1");
  return value == 1;
}

std::size_t Reader::count() {
  const auto value = raw<std::uint64_t>();
  if (value > packet_.bytes.size() - offset_) fail("a length is longer than the rest");
  return static_cast<std::size_t>(value);
}

at::Tensor Reader::tensor() {
  if (next_tensor_ >= packet_.tensors.size()) fail("a tensor is missing");
  return std::move(packet_.tensors[next_tensor_++]);
}

void Reader::finish() const {
  if (offset_ != packet_.bytes.size() || next_tensor_ != packet_.tensors.size()) {
    fail("something is left over");
  }
}

void Codec<std::string>::encode(Writer& out, const std::string& text) {
  out.count(text.size());
  out.bytes(text.data(), text.size());
}

std::string Codec<std::string>::decode(Reader& in) {
  std::string text(in.count(), '\0');
  in.bytes(text.data(), text.size());
  return text;
}

void Codec<at::Tensor>::encode(Writer& out, const at::Tensor& tensor) {
  out.put(tensor.defined());
  if (tensor.defined()) out.tensor(tensor);
}

at::Tensor Codec<at::Tensor>::decode(Reader& in) { return in.flag() ? in.tensor() : at::Tensor(); }

void Codec<at::Scalar>::encode(Writer& out, const at::Scalar& scalar) {
  const auto kind = kind_of(scalar);
  out.put(kind);
  switch (kind) {
    case ScalarKind::kBool:
      return out.put(scalar.toBool());
    case ScalarKind::kInteger:
      return out.put(scalar.toLong());
    case ScalarKind::kFloat:
      return out.put(scalar.toDouble());
    case ScalarKind::kComplex:
      return out.put(scalar.toComplexDouble());
  }
}

at::Scalar Codec<at::Scalar>::decode(Reader& in) {
  switch (in.get<ScalarKind>()) {
    case ScalarKind::kBool:
      return in.get<bool>();
    case ScalarKind::kInteger:
      return in.get<std::int64_t>();
    case ScalarKind::kFloat:
      return in.get<double>();
    case ScalarKind::kComplex:
      return in.get<c10::complex<double>>();
  }
  in.fail("a scalar is of no known kind");
}

void Codec<c10::Device>::encode(Writer& out, const c10::Device& device) {
  out.put(device.type());
  out.put(device.index());
}

c10::Device Codec<c10::Device>::decode(Reader& in) {
  const auto type = in.get<c10::DeviceType>();
  return c10::Device(type, in.get<c10::DeviceIndex>());
}

}  // namespace smp
