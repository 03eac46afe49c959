// data/datasets/arrow_stream.cpp: see the header.
#include "data/datasets/arrow_stream.h"

#include "base/check.h"
#include "data/plugins/own_library.h"
#include "smp/data/documents.h"

namespace smp::data {
namespace {

const OwnLibrary& arrow_library() {
  static const auto library = open_own_library(
      "libsmp_arrow.so", "smp_arrow_calls",
      "run pip install pyarrow for python3, or beside torch (or name pyarrow's folder by "
      "SMP_PYARROW_DIR), then configure and build again; or write JSON lines, "
      "dataset.to_json(\"corpus.jsonl\")");
  return library;
}

const SmpArrowCalls& arrow_calls() {
  SMP_REQUIRE_AS(UnsupportedError, arrow_library().function != nullptr,
                 "folders of `datasets` are read by Arrow, and ", arrow_library().reason);
  return *reinterpret_cast<decltype(&smp_arrow_calls)>(arrow_library().function)();
}

SmpArrowSink appending_to(std::string& text) {
  return {[](void* to, const char* bytes, std::size_t count) {
            static_cast<std::string*>(to)->append(bytes, count);
          },
          &text};
}

}  // namespace

ArrowStream::ArrowStream(const std::string& path, const std::string& column)
    : calls_(arrow_calls()), file_(path), stream_(nullptr, calls_.close) {
  std::string error;
  const auto bytes = file_.bytes();
  stream_.reset(calls_.open(bytes.data(), bytes.size(), column.c_str(), appending_to(error)));
  SMP_REQUIRE(stream_ != nullptr, path, ": ", error);
}

std::int64_t ArrowStream::rows() const { return calls_.rows(stream_.get()); }

std::string_view ArrowStream::text(std::int64_t row) const {
  SMP_ASSERT(row >= 0 && row < rows(), row, " of ", rows());
  const char* text = nullptr;
  std::size_t size = 0;
  std::string error;
  SMP_REQUIRE(calls_.text(stream_.get(), row, &text, &size, appending_to(error)), error);
  return {text, size};
}

bool has_arrow() { return arrow_library().function != nullptr; }

}  // namespace smp::data
