// checkpoint/safetensors_file.cpp: the data beside the header.
#include "checkpoint/safetensors_file.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include "base/check.h"
#include "checkpoint/checksum.h"

namespace smp::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::size_t kDigits = 16;

std::string hexadecimal(std::uint64_t value) {
  std::string digits(kDigits, '0');
  for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit, value >>= 4) {
    *digit = "0123456789abcdef"[value & 15];
  }
  return digits;
}

bool parse_hexadecimal(std::string_view digits, std::uint64_t& value) {
  const auto* const end = digits.data() + digits.size();
  return std::from_chars(digits.data(), end, value, 16).ptr == end;
}

/// Returns the position of the first checksum digit in the text of a header, or npos.
std::size_t checksum_place(const std::string& text) {
  const std::string lead = base::concat("\"", kChecksumKey, "\":\"");
  const auto found = text.find(lead);
  return found == std::string::npos ? found : found + lead.size();
}

/// Returns what a file is that begins with these 8 bytes.
std::string what_it_is(std::uint64_t length) {
  const std::string_view begin(reinterpret_cast<const char*>(&length), kLengthBytes);
  if (begin.starts_with("PK") || begin.starts_with('\x80')) {
    return "torch.save() wrote it, it seems; write its tensors with safetensors.torch.save_file()";
  }
  if (begin == "version ") return "it holds the place of one that `git lfs pull` brings, it seems";
  return base::concat("the length of its header would be ", length, " bytes");
}

std::string read_header(const base::InputFile& file) {
  const auto& path = file.path();
  SMP_REQUIRE(file.size() >= kLengthBytes, path, ": not a safetensors file, or incomplete: it has ",
              file.size(), " bytes");
  std::uint64_t length = 0;
  file.read_at(0, &length, kLengthBytes);
  SMP_REQUIRE(length >= 2 && length <= kLongestHeader, path,
              ": not a safetensors file: ", what_it_is(length));
  SMP_REQUIRE(length <= file.size() - kLengthBytes, path,
              ": incomplete safetensors file: its header has ", length, " bytes, the file ",
              file.size());
  std::string text(length, '\0');
  file.read_at(kLengthBytes, text.data(), length);
  return text;
}

bool are_truth_values(const at::Tensor& tensor) {
  const auto* const bytes = static_cast<const unsigned char*>(tensor.const_data_ptr());
  return std::all_of(bytes, bytes + tensor.nbytes(), [](unsigned char byte) { return byte <= 1; });
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::string& path) : file_(path) {
  auto text = read_header(file_);
  data_begin_ = kLengthBytes + text.size();
  header_ = SafetensorsHeader::parse(text, file_.size() - data_begin_, path);
  take_checksums(std::move(text));
}

void SafetensorsReader::take_checksums(std::string text) {
  const auto found = header_.metadata.find(kChecksumKey);
  if (found == header_.metadata.end()) return;
  const std::string digits = std::move(found->second);
  header_.metadata.erase(found);
  const auto place = checksum_place(text);
  std::vector<std::uint64_t> sums(header_.tensors.size() + 1);
  bool good = place != std::string::npos && digits.size() == sums.size() * kDigits;
  for (std::size_t i = 0; good && i < sums.size(); ++i) {
    good = parse_hexadecimal(std::string_view(digits).substr(i * kDigits, kDigits), sums[i]);
  }
  if (good) {
    text.replace(place, kDigits, kDigits, '0');
    good = checksum(text.data(), text.size()) == sums[0];
  }
  SMP_REQUIRE(good, file_.path(),
              ": damaged safetensors header: its checksum does not fit. If "
              "another program wrote the file and kept our metadata, remove its entry \"",
              kChecksumKey, "\"");
  checksums_.assign(sums.begin() + 1, sums.end());
}

at::Tensor SafetensorsReader::read(std::size_t index) const {
  const auto& [info, begin, end, unreadable] = header_.tensors.at(index);
  SMP_REQUIRE_AS(UnsupportedError, unreadable.empty(), file_.path(), ": \"", info.name,
                 "\": ", unreadable);
  at::NoGradGuard no_grad;
  at::Tensor tensor = at::empty(info.sizes, at::TensorOptions(info.dtype).device(at::kCPU));
  if (end == begin) return tensor;
  file_.read_at(data_begin_ + begin, tensor.mutable_data_ptr(), end - begin);
  SMP_REQUIRE(
      checksums_.empty() || checksum(tensor.const_data_ptr(), end - begin) == checksums_[index],
      file_.path(), ": damaged values of \"", info.name, "\": their checksum does not fit");
  SMP_REQUIRE(info.dtype != c10::ScalarType::Bool || are_truth_values(tensor), file_.path(),
              ": damaged values of \"", info.name, "\": truth values other than 0 and 1");
  return tensor;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<TensorInfo> tensors,
                                     Metadata metadata)
    : checksums_(tensors.size()), written_(tensors.size()), file_(path) {
  metadata[kChecksumKey] = std::string((tensors.size() + 1) * kDigits, '0');
  header_ = SafetensorsHeader::lay_out(std::move(tensors), std::move(metadata));
  data_begin_ = kLengthBytes + header_.text().size();
  SMP_REQUIRE_AS(UnsupportedError, data_begin_ - kLengthBytes <= kLongestHeader, path,
                 ": the header of so many tensors is longer than the format allows");
}

void SafetensorsWriter::write(std::size_t index, const at::Tensor& tensor) {
  const auto& [info, begin, end, unreadable] = header_.tensors.at(index);
  SMP_ASSERT(tensor.scalar_type() == info.dtype && tensor.sizes() == info.sizes, info.name);
  at::NoGradGuard no_grad;
  const auto values = tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
  const std::string_view bytes(static_cast<const char*>(values.const_data_ptr()), end - begin);
  if (!bytes.empty()) file_.write_at(data_begin_ + begin, bytes);
  checksums_[index] = checksum(bytes.data(), bytes.size());
  written_[index] = true;
}

void SafetensorsWriter::commit() {
  SMP_ASSERT(std::find(written_.begin(), written_.end(), false) == written_.end());
  std::string digits(kDigits, '0');
  for (const auto sum : checksums_) digits += hexadecimal(sum);
  header_.metadata[kChecksumKey] = digits;
  auto text = header_.text();
  text.replace(checksum_place(text), kDigits, hexadecimal(checksum(text.data(), text.size())));
  std::uint64_t length = text.size();
  file_.write_at(0, {reinterpret_cast<const char*>(&length), kLengthBytes});
  file_.write_at(kLengthBytes, text);
  file_.commit();
}

}  // namespace smp::checkpoint
