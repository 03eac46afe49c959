// data/documents/utf8_check.h: text that is no UTF-8 is named by its byte.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace smp::data {

/// Compares every byte of `text`, which lies in `file` if that is on disk as it is here. `place` is
/// called only to complain: it may be slow.
/// @throws UsageError  it is no UTF-8: names place and byte
void require_utf8(std::string_view text, std::string_view file,
                  const std::function<std::string()>& place);

}  // namespace smp::data
