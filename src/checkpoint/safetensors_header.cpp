// checkpoint/safetensors_header.cpp: JSON read event by event, so that a damaged header costs no
// more memory than its own length.
#include "checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_set>

#include "base/check.h"
#include "base/text/excerpt.h"

namespace smp::checkpoints {
namespace {

using c10::ScalarType;

constexpr std::array<std::pair<std::string_view, ScalarType>, 20> kTypes{{
    {"BOOL", ScalarType::Bool},
    {"U8", ScalarType::Byte},
    {"I8", ScalarType::Char},
    {"U16", ScalarType::UInt16},
    {"I16", ScalarType::Short},
    {"U32", ScalarType::UInt32},
    {"I32", ScalarType::Int},
    {"U64", ScalarType::UInt64},
    {"I64", ScalarType::Long},
    {"F16", ScalarType::Half},
    {"BF16", ScalarType::BFloat16},
    {"F32", ScalarType::Float},
    {"F64", ScalarType::Double},
    {"C64", ScalarType::ComplexFloat},
    {"F8_E4M3", ScalarType::Float8_e4m3fn},
    {"F8_E5M2", ScalarType::Float8_e5m2},
    {"F8_E8M0", ScalarType::Float8_e8m0fnu},
    {"F8_E4M3FNUZ", ScalarType::Float8_e4m3fnuz},
    {"F8_E5M2FNUZ", ScalarType::Float8_e5m2fnuz},
    {"F4", ScalarType::Float4_e2m1fn_x2},
}};

/// Bits of the elements of types that LibTorch does not have.
constexpr std::array<std::pair<std::string_view, std::uint64_t>, 2> kOtherTypes{
    {{"F6_E2M3", 6}, {"F6_E3M2", 6}}};

constexpr std::size_t kMostDimensions = 64;

/// Returns the bits of a tensor, or nothing if they exceed what a file can have.
std::optional<std::uint64_t> bits_of(std::uint64_t bits, const std::vector<std::int64_t>& sizes) {
  bool is_empty = false;
  for (const std::int64_t size : sizes) {
    const auto factor = static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1));
    if (factor > std::numeric_limits<std::int64_t>::max() / bits) return {};
    bits *= factor;
    is_empty |= size == 0;
  }
  return is_empty ? 0 : bits;
}

/// Returns the bits of an element in the shape of a file, or nothing for an unknown type.
std::optional<std::uint64_t> bits_of_type(std::string_view name) {
  const auto type = dtype_of_name(name);
  if (type == ScalarType::Float4_e2m1fn_x2) return 4;
  if (type != ScalarType::Undefined) return 8 * c10::elementSize(type);
  for (const auto& [known, bits] : kOtherTypes) {
    if (known == name) return bits;
  }
  return {};
}

std::uint64_t bytes_of(const TensorInfo& info) {
  return bits_of(8 * c10::elementSize(info.dtype), info.sizes).value() / 8;
}

/// Returns the shape that a file gives a tensor.
std::vector<std::int64_t> sizes_in_file(const TensorInfo& info) {
  auto sizes = info.sizes;
  if (info.dtype == ScalarType::Float4_e2m1fn_x2) sizes.back() *= 2;
  return sizes;
}

/// Follows the JSON parser through {name: {key: value}} and refuses everything else at once, but
/// for members of tensors that it does not know.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(std::string name) : name_(std::move(name)) {}

  SafetensorsHeader take() && { return std::move(header_); }

  bool start_object(std::size_t) override {
    if (is_ignored()) return begin_ignored();
    if (depth_ == 2) refuse("an object where a value belongs");
    ++depth_;
    return true;
  }
  bool end_object() override {
    if (ignored_depth_ > 0) return end_ignored();
    if (--depth_ == 1 && !in_metadata_) finish_tensor();
    if (depth_ == 1) in_metadata_ = false;
    return true;
  }
  bool key(string_t& key) override {
    if (ignored_depth_ > 0) return true;
    if (depth_ == 1) {
      tensor_ = {};
      tensor_.info.name = key;
      type_.clear();
      seen_.clear();
      if (!names_.insert(key).second) refuse("is there twice");
      in_metadata_ = key == "__metadata__";
    } else {
      if (!seen_.insert(key).second) refuse("its \"", key, "\" is there twice");
      key_ = key;
    }
    return true;
  }
  bool start_array(std::size_t) override {
    if (is_ignored()) return begin_ignored();
    if (depth_ != 2 || in_metadata_ || in_array_ || key_ == "dtype")
      refuse("a list in a wrong place");
    in_array_ = true;
    numbers_.clear();
    return true;
  }
  bool end_array() override {
    if (ignored_depth_ > 0) return end_ignored();
    in_array_ = false;
    if (key_ == "shape") {
      tensor_.info.sizes = numbers_;
    } else {
      if (numbers_.size() != 2) refuse("data_offsets needs 2 numbers, not ", numbers_.size());
      tensor_.begin = static_cast<std::uint64_t>(numbers_[0]);
      tensor_.end = static_cast<std::uint64_t>(numbers_[1]);
    }
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (is_ignored()) return true;
    if (!in_array_) refuse("a number where none belongs");
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
      refuse("the number ", value, " is too large");
    }
    if (numbers_.size() == kMostDimensions) refuse("more than ", kMostDimensions, " dimensions");
    numbers_.push_back(static_cast<std::int64_t>(value));
    return true;
  }
  bool string(string_t& value) override {
    if (is_ignored()) return true;
    if (depth_ != 2 || in_array_) refuse("a text where none belongs");
    if (in_metadata_) {
      header_.metadata.emplace(key_, value);
    } else if (key_ != "dtype") {
      refuse("a text where a list belongs");
    } else {
      type_ = value;
    }
    return true;
  }
  bool null() override {
    if (depth_ != 1 || !in_metadata_) return wrong_value("null");
    in_metadata_ = false;
    return true;
  }
  bool boolean(bool) override { return wrong_value("a truth value"); }
  bool number_integer(number_integer_t) override { return wrong_value("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return wrong_value("a fraction"); }
  bool binary(binary_t&) override { return wrong_value("binary data"); }
  bool parse_error(std::size_t at, const std::string&,
                   const nlohmann::detail::exception&) override {
    throw UsageError(base::concat(name_, ": not a safetensors file: its header is no JSON at byte ",
                                  at + kLengthBytes));
  }

 private:
  std::string place() const {
    return base::concat(
        name_, ": damaged safetensors header: ",
        depth_ == 0 ? "" : base::concat("\"", base::excerpt(tensor_.info.name), "\": "));
  }
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    throw UsageError(base::concat(place(), parts...));
  }
  bool wrong_value(const char* what) const {
    if (is_ignored()) return true;
    refuse(what, " where none belongs");
  }

  /// True within the value of a member that says nothing to this reader.
  bool is_ignored() const {
    return ignored_depth_ > 0 || (depth_ == 2 && !in_metadata_ && !in_array_ && key_ != "dtype" &&
                                  key_ != "shape" && key_ != "data_offsets");
  }
  bool begin_ignored() {
    ++ignored_depth_;
    return true;
  }
  bool end_ignored() {
    --ignored_depth_;
    return true;
  }

  void finish_tensor() {
    auto& info = tensor_.info;
    for (const char* needed : {"dtype", "shape", "data_offsets"}) {
      if (seen_.count(needed) == 0) refuse("\"", needed, "\" is missing");
    }
    if (tensor_.begin > tensor_.end) {
      refuse("bytes ", tensor_.begin, " to ", tensor_.end, " cannot hold a tensor");
    }
    const auto bits = bits_of_type(type_);
    const auto all = bits ? bits_of(*bits, info.sizes) : 8 * (tensor_.end - tensor_.begin);
    if (!all || *all % 8 != 0 || tensor_.end - tensor_.begin != *all / 8) {
      refuse("bytes ", tensor_.begin, " to ", tensor_.end, " cannot hold ", base::excerpt(type_),
             " of shape ", c10::IntArrayRef(info.sizes));
    }
    take_type();
    header_.tensors.push_back(std::move(tensor_));
    tensor_ = {};
  }

  void take_type() {
    auto& info = tensor_.info;
    info.dtype = dtype_of_name(type_);
    if (info.dtype == ScalarType::Undefined) {
      tensor_.unreadable = base::concat("LibTorch has no dtype \"", base::excerpt(type_), "\"");
    } else if (info.dtype == ScalarType::Float4_e2m1fn_x2) {
      const bool pairs = !info.sizes.empty() && info.sizes.back() % 2 == 0;
      if (pairs) {
        info.sizes.back() /= 2;
        return;
      }
      info.dtype = ScalarType::Undefined;
      tensor_.unreadable = base::concat(
          "LibTorch has numbers of 4 bits (F4) in pairs only, and its last dimension is odd");
    }
  }

  std::string name_;
  SafetensorsHeader header_;
  int depth_ = 0;
  int ignored_depth_ = 0;
  bool in_metadata_ = false;
  bool in_array_ = false;
  PlacedTensor tensor_;
  std::string type_;  // of that tensor
  std::string key_;
  std::vector<std::int64_t> numbers_;
  std::unordered_set<std::string> names_;  // of all tensors
  std::unordered_set<std::string> seen_;   // of the one that is read
};

void check_places(const SafetensorsHeader& header, const std::string& name) {
  std::vector<const PlacedTensor*> by_place;
  for (const auto& tensor : header.tensors) by_place.push_back(&tensor);
  std::sort(by_place.begin(), by_place.end(), [](const auto* a, const auto* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  std::uint64_t at = 0;
  for (const auto* tensor : by_place) {
    SMP_REQUIRE(tensor->begin == at, name, ": damaged safetensors file: \"",
                base::excerpt(tensor->info.name), "\" starts at byte ", tensor->begin,
                " of the data, where ", at, " is expected (",
                tensor->begin < at ? "tensors overlap" : "there is a gap", ")");
    at = tensor->end;
  }
  SMP_REQUIRE(at == header.data_bytes, name, ": ",
              at > header.data_bytes ? "incomplete" : "damaged", " safetensors file: it has ",
              header.data_bytes, " bytes of data, and its header tells of ", at);
}

template <class Value>
std::string json_text(const Value& value, const char* what, const std::string& name) {
  try {
    return nlohmann::json(value).dump();
  } catch (const nlohmann::json::exception&) {
    throw UsageError(base::concat(what, " \"", base::excerpt(name),
                                  "\" is no UTF-8 text, which safetensors files consist of: it "
                                  "cannot be saved; rename it"));
  }
}

}  // namespace

std::optional<std::string_view> dtype_name(ScalarType dtype) noexcept {
  for (const auto& [name, type] : kTypes) {
    if (type == dtype) return name;
  }
  return {};
}

ScalarType dtype_of_name(std::string_view name) noexcept {
  for (const auto& [known, type] : kTypes) {
    if (known == name) return type;
  }
  return ScalarType::Undefined;
}

SafetensorsHeader SafetensorsHeader::lay_out(std::vector<TensorInfo> tensors, Metadata metadata) {
  SafetensorsHeader header;
  header.metadata = std::move(metadata);
  for (auto& info : tensors) {
    SMP_REQUIRE_AS(UnsupportedError, dtype_name(info.dtype), "tensor ", info.name,
                   ": safetensors files have no elements of type ", info.dtype,
                   "; convert it first (complex double: torch::view_as_real)");
    SMP_REQUIRE(info.name != "__metadata__",
                "a tensor cannot be called __metadata__ in a "
                "safetensors file; rename it");
    SMP_REQUIRE_AS(UnsupportedError,
                   info.dtype != ScalarType::Float4_e2m1fn_x2 || !info.sizes.empty(), "tensor ",
                   info.name,
                   ": safetensors files count its two numbers of 4 bits apart, and a "
                   "tensor without dimensions has one; give it a dimension");
    header.tensors.push_back({std::move(info), 0, 0});
  }
  std::vector<std::size_t> order(header.tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return c10::elementSize(header.tensors[a].info.dtype) >
           c10::elementSize(header.tensors[b].info.dtype);
  });
  for (const std::size_t i : order) {
    auto& tensor = header.tensors[i];
    tensor.begin = header.data_bytes;
    header.data_bytes += bytes_of(tensor.info);
    tensor.end = header.data_bytes;
  }
  return header;
}

SafetensorsHeader SafetensorsHeader::parse(std::string_view text, std::uint64_t data_bytes,
                                           const std::string& name) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  SMP_REQUIRE(begin != std::string_view::npos && text[begin] == '{', name,
              ": not a safetensors file: its header does not begin with {");
  HeaderReader reader(name);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  auto header = std::move(reader).take();
  header.data_bytes = data_bytes;
  check_places(header, name);
  return header;
}

std::string SafetensorsHeader::text() const {
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      text += json_text(key, "the metadata's key", key) + ":";
      text += json_text(value, "the metadata of", key) + ",";
    }
    text.back() = '}';
    text += ',';
  }
  for (const auto& tensor : tensors) {
    const auto& info = tensor.info;
    text += json_text(info.name, "the name", info.name);
    text += base::concat(":{\"dtype\":\"", *dtype_name(info.dtype),
                         "\",\"shape\":", nlohmann::json(sizes_in_file(info)).dump());
    text += base::concat(",\"data_offsets\":[", tensor.begin, ",", tensor.end, "]},");
  }
  if (text.back() == ',') text.pop_back();
  text += '}';
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  return text;
}

}  // namespace smp::checkpoints
