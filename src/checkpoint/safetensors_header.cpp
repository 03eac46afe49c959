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

namespace smp::checkpoint {
namespace {

using c10::ScalarType;

constexpr std::array<std::pair<std::string_view, ScalarType>, 19> kTypes{{
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
}};

constexpr std::size_t kMostDimensions = 64;

/// Returns the bytes of a tensor, or nothing if they exceed what a file can have.
std::optional<std::uint64_t> bytes_of(const TensorInfo& info) {
  std::uint64_t bytes = c10::elementSize(info.dtype);
  bool is_empty = false;
  for (const std::int64_t size : info.sizes) {
    const auto factor = static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1));
    if (factor > std::numeric_limits<std::int64_t>::max() / bytes) return {};
    bytes *= factor;
    is_empty |= size == 0;
  }
  return is_empty ? 0 : bytes;
}

/// Follows the JSON parser through {name: {key: value}} and refuses everything else at once.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(std::string name) : name_(std::move(name)) {}

  SafetensorsHeader take() && { return std::move(header_); }

  bool start_object(std::size_t) override {
    if (depth_ == 2) refuse("an object where a value belongs");
    ++depth_;
    return true;
  }
  bool end_object() override {
    if (--depth_ == 1 && !in_metadata_) finish_tensor();
    if (depth_ == 1) in_metadata_ = false;
    return true;
  }
  bool key(string_t& key) override {
    if (depth_ == 1) {
      if (!names_.insert(key).second) refuse("is there twice");
      in_metadata_ = key == "__metadata__";
      tensor_ = {};
      tensor_.info.name = key;
      seen_.clear();
    } else {
      if (!seen_.insert(key).second) refuse("its \"", key, "\" is there twice");
      key_ = key;
      if (!in_metadata_ && key != "dtype" && key != "shape" && key != "data_offsets") {
        refuse("\"", key, "\", which is unknown");
      }
    }
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || in_array_ || key_ == "dtype")
      refuse("a list in a wrong place");
    in_array_ = true;
    numbers_.clear();
    return true;
  }
  bool end_array() override {
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
    if (!in_array_) refuse("a number where none belongs");
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
      refuse("the number ", value, " is too large");
    }
    if (numbers_.size() == kMostDimensions) refuse("more than ", kMostDimensions, " dimensions");
    numbers_.push_back(static_cast<std::int64_t>(value));
    return true;
  }
  bool string(string_t& value) override {
    if (depth_ != 2 || in_array_) refuse("a text where none belongs");
    if (in_metadata_) {
      header_.metadata.emplace(key_, value);
    } else if (key_ != "dtype") {
      refuse("a text where a list belongs");
    } else {
      tensor_.info.dtype = dtype_of_name(value);
      if (tensor_.info.dtype == ScalarType::Undefined) {
        throw UnsupportedError(base::concat(place(), "LibTorch has no dtype \"", value, "\""));
      }
    }
    return true;
  }
  bool null() override { return wrong_value("null"); }
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
    return base::concat(name_, ": damaged safetensors header: ",
                        depth_ == 0 ? "" : base::concat("\"", tensor_.info.name, "\": "));
  }
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    throw UsageError(base::concat(place(), parts...));
  }
  bool wrong_value(const char* what) const { refuse(what, " where none belongs"); }

  void finish_tensor() {
    const auto& info = tensor_.info;
    for (const char* needed : {"dtype", "shape", "data_offsets"}) {
      if (seen_.count(needed) == 0) refuse("\"", needed, "\" is missing");
    }
    const auto bytes = bytes_of(info);
    if (tensor_.begin > tensor_.end || !bytes || tensor_.end - tensor_.begin != *bytes) {
      refuse("bytes ", tensor_.begin, " to ", tensor_.end, " cannot hold ", *dtype_name(info.dtype),
             " of shape ", c10::IntArrayRef(info.sizes));
    }
    header_.tensors.push_back(std::move(tensor_));
    tensor_ = {};
  }

  std::string name_;
  SafetensorsHeader header_;
  int depth_ = 0;
  bool in_metadata_ = false;
  bool in_array_ = false;
  PlacedTensor tensor_;
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
    SMP_REQUIRE(tensor->begin == at, name, ": damaged safetensors file: \"", tensor->info.name,
                "\" starts at byte ", tensor->begin, " of the data, where ", at, " is expected (",
                tensor->begin < at ? "tensors overlap" : "there is a gap", ")");
    at = tensor->end;
  }
  SMP_REQUIRE(at == header.data_bytes, name, ": ",
              at > header.data_bytes ? "incomplete" : "damaged", " safetensors file: it has ",
              header.data_bytes, " bytes of data, and its header tells of ", at);
}

template <class Value>
std::string json_text(const Value& value) {
  try {
    return nlohmann::json(value).dump();
  } catch (const nlohmann::json::exception&) {
    throw UsageError("a tensor's name, or metadata, is no UTF-8 text: it cannot be saved");
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
    header.data_bytes += bytes_of(tensor.info).value();
    tensor.end = header.data_bytes;
  }
  return header;
}

SafetensorsHeader SafetensorsHeader::parse(std::string_view text, std::uint64_t data_bytes,
                                           const std::string& name) {
  SMP_REQUIRE(text.starts_with('{'), name,
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
  if (!metadata.empty()) text += "\"__metadata__\":" + json_text(metadata) + ",";
  for (const auto& [info, begin, end] : tensors) {
    text += json_text(info.name);
    text += base::concat(":{\"dtype\":\"", *dtype_name(info.dtype), "\",\"shape\":");
    text += json_text(info.sizes);
    text += base::concat(",\"data_offsets\":[", begin, ",", end, "]},");
  }
  if (text.back() == ',') text.pop_back();
  text += '}';
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  return text;
}

}  // namespace smp::checkpoint
