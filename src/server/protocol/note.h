// server/protocol/note.h: a text in a message that is nearly always empty.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace smp::server {

/// A constant text, nearly always empty. As small as a pointer and as cheap to move, because
/// messages are moved often.
class Note {
 public:
  Note() = default;
  Note(std::string text)  // NOLINT(google-explicit-constructor)
      : text_(text.empty() ? nullptr : std::make_unique<const std::string>(std::move(text))) {}
  Note(const char* text) : Note(std::string(text)) {}  // NOLINT(google-explicit-constructor)
  Note(const Note& other) : Note(std::string(other.view())) {}
  Note(Note&&) noexcept = default;
  Note& operator=(const Note& other) { return *this = Note(other); }
  Note& operator=(Note&&) noexcept = default;
  ~Note() = default;

  bool empty() const noexcept { return text_ == nullptr; }
  std::string_view view() const noexcept {
    return text_ == nullptr ? std::string_view() : std::string_view(*text_);
  }
  operator std::string_view() const noexcept {  // NOLINT(google-explicit-constructor)
    return view();
  }

  friend bool operator==(const Note& a, const Note& b) noexcept { return a.view() == b.view(); }

 private:
  std::unique_ptr<const std::string> text_;
};

}  // namespace smp::server
