// checkpoint/safetensors_file.cpp: the data beside the header.
#include "checkpoint/safetensors_file.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include "base/check.h"
#include "base/memory/file_copy.h"
#include "base/text/excerpt.h"
#include "checkpoint/checksum.h"

namespace smp::checkpoints {
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

/// Returns the position of the first checksum digit in the text of a header, or npos. Before the
/// key is what goes before no quote within a text.
std::size_t checksum_place(const std::string& text) {
  for (const char before : {'{', ','}) {
    const auto lead = base::concat(before, "\"", kChecksumKey, "\":\"");
    const auto found = text.find(lead);
    if (found != std::string::npos) return found + lead.size();
  }
  return std::string::npos;
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

bool are_truth_values(std::string_view bytes) noexcept {
  return std::all_of(bytes.begin(), bytes.end(), [](char byte) { return byte == 0 || byte == 1; });
}

/// What is known of the values of a tensor.
struct Seen {
  Checksum sum;
  bool sums = false;    ///< whether that is asked for
  bool truths = false;  ///< whether they are to be truth values
  bool odd = false;     ///< whether one is something else

  void add(std::string_view bytes) noexcept {
    if (sums) sum.add(bytes.data(), bytes.size());
    if (truths) odd |= !are_truth_values(bytes);
  }
};

/// Values are looked at while they are in a core's cache.
constexpr std::uint64_t kPart = 512 << 10;
/// What a thread of several copies at a time.
constexpr std::int64_t kShare = 4 << 20;

/// Copies on as many threads as LibTorch's operators run on.
void copy_on_threads(const base::InputFile& file, std::uint64_t offset, char* to,
                     std::uint64_t size) {
  at::parallel_for(0, static_cast<std::int64_t>(size), kShare,
                   [&](std::int64_t begin, std::int64_t end) {
                     base::copy_from(file, offset + static_cast<std::uint64_t>(begin), to + begin,
                                     static_cast<std::size_t>(end - begin));
                   });
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::string& path) : file_(path) {
  auto text = read_header(file_);
  data_begin_ = kLengthBytes + text.size();
  header_ = SafetensorsHeader::parse(text, file_.size() - data_begin_, path);
  checked_.resize(header_.tensors.size());
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

const PlacedTensor& SafetensorsReader::readable(std::size_t index) const {
  const auto& placed = header_.tensors.at(index);
  SMP_REQUIRE_AS(UnsupportedError, placed.unreadable.empty(), file_.path(), ": \"",
                 base::excerpt(placed.info.name), "\": ", placed.unreadable);
  return placed;
}

void SafetensorsReader::require_checksum(std::size_t index, std::uint64_t sum) const {
  SMP_REQUIRE(checksums_.empty() || sum == checksums_[index], file_.path(),
              ": damaged values of \"", base::excerpt(header_.tensors[index].info.name),
              "\": their checksum does not fit");
}

void SafetensorsReader::refuse_truth_values(const PlacedTensor& placed) const {
  throw UsageError(base::concat(file_.path(), ": damaged values of \"",
                                base::excerpt(placed.info.name),
                                "\": truth values other than 0 and 1"));
}

at::Tensor SafetensorsReader::read(std::size_t index) const {
  const auto& info = readable(index).info;
  at::NoGradGuard no_grad;
  at::Tensor tensor = at::empty(info.sizes, at::TensorOptions(info.dtype).device(at::kCPU));
  read_into(index, tensor);
  return tensor;
}

void SafetensorsReader::read_into(std::size_t index, const at::Tensor& target) const {
  const auto& placed = readable(index);
  SMP_ASSERT(target.sizes() == placed.info.sizes && target.is_contiguous() && target.is_cpu(),
             placed.info.name);
  const auto size = placed.end - placed.begin;
  if (size == 0) return;
  if (target.scalar_type() != placed.info.dtype) return read_converted(index, target);
  auto* const bytes = static_cast<char*>(target.mutable_data_ptr());
  if (checked_[index]) {
    copy_on_threads(file_, data_begin_ + placed.begin, bytes, size);
    if (!file_.has_changed()) return;
  }
  read_parts(
      index, [bytes](std::uint64_t done) { return bytes + done; },
      [](std::uint64_t, std::size_t) {});
}

void SafetensorsReader::read_converted(std::size_t index, const at::Tensor& target) const {
  const at::NoGradGuard no_grad;
  const auto dtype = header_.tensors[index].info.dtype;
  const auto element = c10::elementSize(dtype);
  const auto part = at::empty({static_cast<std::int64_t>(kPart / element)},
                              at::TensorOptions(dtype).device(at::kCPU));
  auto* const bytes = static_cast<char*>(part.mutable_data_ptr());
  const auto values = target.view({-1});
  read_parts(
      index, [bytes](std::uint64_t) { return bytes; },
      [&](std::uint64_t done, std::size_t count) {
        const auto elements = static_cast<std::int64_t>(count / element);
        values.narrow(0, static_cast<std::int64_t>(done / element), elements)
            .copy_(part.narrow(0, 0, elements));
      });
}

void SafetensorsReader::read_parts(
    std::size_t index, const std::function<char*(std::uint64_t)>& place,
    const std::function<void(std::uint64_t, std::size_t)>& use) const {
  const auto& placed = header_.tensors[index];
  const auto size = placed.end - placed.begin;
  Seen seen{Checksum(), !checksums_.empty(), placed.info.dtype == c10::ScalarType::Bool};
  for (std::uint64_t done = 0; done < size;) {
    const auto count = static_cast<std::size_t>(std::min(size - done, kPart));
    auto* const to = place(done);
    file_.read_at(data_begin_ + placed.begin + done, to, count);
    seen.add({to, count});
    if (seen.odd) refuse_truth_values(placed);
    use(done, count);
    done += count;
  }
  require_checksum(index, seen.sum.value());
}

void SafetensorsReader::check(std::size_t index) const {
  const auto& placed = readable(index);
  if (checked_[index] && !file_.has_changed()) return;  // several tensors of a model are in it
  const auto begin = data_begin_ + placed.begin;
  const auto size = placed.end - placed.begin;
  if (checksums_.empty() && placed.info.dtype != c10::ScalarType::Bool) {
    file_.require_readable(begin, size);
  } else {
    Seen seen{Checksum(), !checksums_.empty(), placed.info.dtype == c10::ScalarType::Bool};
    base::read_in_place(file_, begin, size, seen);
    if (seen.odd) refuse_truth_values(placed);
    if (size > 0) require_checksum(index, seen.sum.value());
  }
  checked_[index] = true;
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

}  // namespace smp::checkpoints
