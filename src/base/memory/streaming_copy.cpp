// base/memory/streaming_copy.cpp: whole lines of 64 bytes, which need not be known to be written.
#include "base/memory/streaming_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace smp::base {

#if defined(__SSE2__)

namespace {

constexpr std::size_t kLine = 64;
/// Memory is fetched ahead within a page only: several pages side by side keep it busy.
constexpr std::size_t kPage = 4096;
constexpr std::size_t kPages = 4;

void stream_line(char* to, const char* from) noexcept {
  const auto load = [from](int i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i);
  };
  const __m128i parts[]{load(0), load(1), load(2), load(3)};
  for (int i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, parts[i]);
}

void stream_pages(char* to, const char* from) noexcept {
  for (std::size_t line = 0; line < kPage; line += kLine) {
    for (std::size_t page = 0; page < kPages; ++page) {
      stream_line(to + page * kPage + line, from + page * kPage + line);
    }
  }
}

}  // namespace

void streaming_copy(void* to, const void* from, std::size_t size) noexcept {
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  const auto before = (kLine - reinterpret_cast<std::uintptr_t>(out) % kLine) % kLine;
  const auto head = std::min(size, before);
  std::memcpy(out, in, head);
  std::size_t done = head;
  for (; size - done >= kPages * kPage; done += kPages * kPage) stream_pages(out + done, in + done);
  for (; size - done >= kLine; done += kLine) stream_line(out + done, in + done);
  std::memcpy(out + done, in + done, size - done);
  _mm_sfence();  // whoever sees what this thread writes next sees these as well
}

#else

void streaming_copy(void* to, const void* from, std::size_t size) noexcept {
  std::memcpy(to, from, size);
}

#endif

}  // namespace smp::base
