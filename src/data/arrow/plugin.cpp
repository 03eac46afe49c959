// data/arrow/plugin.cpp: libsmp_arrow.so, which alone is linked with Arrow.
#include <arrow/array.h>
#include <arrow/buffer.h>
#include <arrow/io/memory.h>
#include <arrow/ipc/reader.h>
#include <arrow/record_batch.h>
#include <arrow/result.h>
#include <arrow/status.h>
#include <arrow/type.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/arrow/interface.h"

namespace {

using arrow::Status;

/// A column of texts of one stream.
class TextStream {
 public:
  static arrow::Result<std::unique_ptr<TextStream>> open(std::string_view bytes,
                                                         const std::string& column) {
    std::unique_ptr<TextStream> stream(new TextStream(bytes));
    ARROW_RETURN_NOT_OK(stream->read(column));
    return stream;
  }

  std::int64_t rows() const { return ends_.empty() ? 0 : ends_.back(); }

  arrow::Result<std::string_view> text(std::int64_t row) const {
    const auto batch = std::upper_bound(ends_.begin(), ends_.end(), row) - ends_.begin();
    const auto& column = *columns_[static_cast<std::size_t>(batch)];
    const auto before = batch == 0 ? 0 : ends_[static_cast<std::size_t>(batch - 1)];
    if (column.type_id() == arrow::Type::STRING) {
      return text_of(static_cast<const arrow::StringArray&>(column), row - before);
    }
    return text_of(static_cast<const arrow::LargeStringArray&>(column), row - before);
  }

 private:
  using Reader = arrow::ipc::RecordBatchStreamReader;

  explicit TextStream(std::string_view bytes) : bytes_(bytes) {}

  Status read(const std::string& column) {
    ARROW_ASSIGN_OR_RAISE(auto options, options_for(column));
    arrow::io::BufferReader input(buffer());
    ARROW_ASSIGN_OR_RAISE(const auto reader, Reader::Open(&input, options));
    for (;;) {
      ARROW_ASSIGN_OR_RAISE(const auto at, input.Tell());
      std::shared_ptr<arrow::RecordBatch> batch;
      auto status = reader->ReadNext(&batch);
      if (status.ok() && batch == nullptr) return check_end(at);
      if (status.ok()) status = add(*batch);
      if (!status.ok()) return Status::Invalid(place(at), "damaged: ", status.message());
    }
  }

  std::shared_ptr<arrow::Buffer> buffer() const {
    return std::make_shared<arrow::Buffer>(reinterpret_cast<const std::uint8_t*>(bytes_.data()),
                                           static_cast<std::int64_t>(bytes_.size()));
  }

  /// Options to read `column` alone, which must hold text.
  arrow::Result<arrow::ipc::IpcReadOptions> options_for(const std::string& column) const {
    arrow::io::BufferReader input(buffer());
    const auto opened = Reader::Open(&input);
    if (!opened.ok()) {
      return Status::Invalid("byte 0: is no Arrow stream, or its head is damaged: ",
                             opened.status().message());
    }
    const auto& schema = *(*opened)->schema();
    const int index = schema.GetFieldIndex(column);
    if (index < 0) {
      std::string names;
      for (const auto& name : schema.field_names()) names += (names.empty() ? "" : ", ") + name;
      return Status::Invalid("has no column \"", column, "\", or several; its columns are ", names,
                             " (DocumentOptions::field)");
    }
    const auto& type = *schema.field(index)->type();
    if (type.id() != arrow::Type::STRING && type.id() != arrow::Type::LARGE_STRING) {
      return Status::Invalid("the column \"", column, "\" is of type ", type.ToString(),
                             ", not of string or large_string");
    }
    auto options = arrow::ipc::IpcReadOptions::Defaults();
    options.included_fields = {index};
    options.use_threads = false;
    return options;
  }

  Status add(const arrow::RecordBatch& batch) {
    auto column = batch.column(0);
    ARROW_RETURN_NOT_OK(column->Validate());
    ends_.push_back(rows() + column->length());
    columns_.push_back(std::move(column));
    return Status::OK();
  }

  /// The reader is content with a stream that just ends, and with others behind it.
  Status check_end(std::int64_t at) const {
    using std::string_view_literals::operator""sv;
    const auto left = bytes_.substr(static_cast<std::size_t>(at));
    if (left == "\xff\xff\xff\xff\0\0\0\0"sv || left == "\0\0\0\0"sv) return Status::OK();
    if (left.empty()) {
      return Status::Invalid(place(at), "the file is cut short, or was never finished: the mark ",
                             "at the end of its stream is missing");
    }
    return Status::Invalid(place(at), "the stream ends here, but the file has ", left.size(),
                           " more bytes");
  }

  std::string place(std::int64_t at) const {
    return "byte " + std::to_string(at) + ", before row " + std::to_string(rows()) + ": ";
  }

  template <class Array>
  static arrow::Result<std::string_view> text_of(const Array& column, std::int64_t row) {
    if (column.IsNull(row)) return Status::Invalid("is null");
    const std::int64_t begin = column.value_offset(row);
    const std::int64_t end = column.value_offset(row + 1);
    const auto size = column.value_data() == nullptr ? 0 : column.value_data()->size();
    if (begin < 0 || end < begin || end > size) {
      return Status::Invalid("is damaged: would be bytes ", begin, " to ", end, " of ", size);
    }
    if (begin == end) return std::string_view();
    const auto* const texts = reinterpret_cast<const char*>(column.value_data()->data());
    return std::string_view(texts + begin, static_cast<std::size_t>(end - begin));
  }

  std::string_view bytes_;
  std::vector<std::shared_ptr<arrow::Array>> columns_;  // one a batch
  std::vector<std::int64_t> ends_;                      // rows up to and with each batch
};

void put(const SmpArrowSink& sink, std::string_view text) {
  sink.put(sink.to, text.data(), text.size());
}

const TextStream& of(const void* stream) { return *static_cast<const TextStream*>(stream); }

void* open_stream(const char* bytes, std::size_t size, const char* column, SmpArrowSink error) {
  try {
    auto stream = TextStream::open({bytes, size}, column);
    if (stream.ok()) return stream->release();
    put(error, stream.status().message());
  } catch (const std::exception& thrown) {
    put(error, thrown.what());
  }
  return nullptr;
}

void close_stream(void* stream) { delete static_cast<TextStream*>(stream); }

std::int64_t rows(const void* stream) { return of(stream).rows(); }

bool text(const void* stream, std::int64_t row, const char** text, std::size_t* size,
          SmpArrowSink error) {
  try {
    const auto found = of(stream).text(row);
    if (found.ok()) {
      *text = found->data();
      *size = found->size();
      return true;
    }
    put(error, found.status().message());
  } catch (const std::exception& thrown) {
    put(error, thrown.what());
  }
  return false;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const SmpArrowCalls* smp_arrow_calls() {
  static const SmpArrowCalls calls = {open_stream, close_stream, rows, text};
  return &calls;
}
