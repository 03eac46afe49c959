// config/json.cpp: nlohmann-json's parser fills values that we build: in its own way an object of n
// keys takes time n², and nested brackets are only limited by the stack of who prints them.
#include "config/json.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/files.h"

namespace smp::base {
namespace {

using Events = nlohmann::json_sax<Json>;

constexpr int kNumberTooLarge = 406;  // the parser's number of this error
constexpr std::size_t kComplaintBytes = 240;

// "line 4, column 3: syntax error ..." out of the library's text.
std::string shorten(const std::string& what) {
  const std::string lead = "parse error at ";
  const auto at = what.find(lead);
  return excerpt(at == std::string::npos ? what : what.substr(at + lead.size()), kComplaintBytes);
}

/// Builds one value out of the parser's events.
class Builder final : public Events {
 public:
  explicit Builder(const std::string& name) : name_(name) {}

  Json take() && { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // JSON has none
  bool key(string_t& value) override {
    key_ = std::move(value);
    return true;
  }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override {
    refuse_duplicates(*open_.back());
    return end_array();
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool parse_error(std::size_t, const std::string& last,
                   const nlohmann::detail::exception& error) override {
    SMP_REQUIRE(error.id != kNumberTooLarge, name_, ": the number ", excerpt(last),
                " is too large; the largest is 1.79e308");
    throw UsageError(concat(name_, ": ", shorten(error.what())));
  }

 private:
  // Only the innermost open value grows, so that pointers to those around it hold.
  Json& add(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    Json& parent = *open_.back();
    if (parent.is_array()) return parent.emplace_back(std::move(value));
    return parent.get_ref<Json::object_t&>().emplace_back(std::move(key_), std::move(value)).second;
  }
  bool put(Json value) {
    add(std::move(value));
    return true;
  }
  bool open(Json value) {
    SMP_REQUIRE(open_.size() < kMostJsonDepth, name_, ": brackets are nested more than ",
                kMostJsonDepth, " deep; nothing that smp reads is, so this is another file");
    open_.push_back(&add(std::move(value)));
    return true;
  }
  void refuse_duplicates(const Json& object) const {
    std::vector<std::string_view> keys;
    for (const auto& member : object.get_ref<const Json::object_t&>()) keys.push_back(member.first);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    SMP_REQUIRE(twice == keys.end(), name_, ": the key \"", excerpt(*twice),
                "\" is given twice; remove one");
  }

  const std::string& name_;
  Json root_;
  std::vector<Json*> open_;
  std::string key_;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& name) {
  SMP_REQUIRE(text.size() <= kMostJsonBytes, name, ": has ", text.size(),
              " bytes, of which at most ", kMostJsonBytes, " are read; is it another file?");
  // The parser takes it for the end, and files that a crash cut off are filled up with it.
  const auto zero = text.find('\0');
  SMP_REQUIRE(
      zero == std::string_view::npos, name, ": byte ", zero + 1,
      " is 0, which is no JSON; is it another file, or was it cut off while it was written?");
  Builder builder(name);
  Json::sax_parse(text.begin(), text.end(), &builder, Json::input_format_t::json, /*strict=*/true,
                  /*ignore_comments=*/true);
  return std::move(builder).take();
}

std::optional<Json> find_json(std::string_view text) {
  try {
    return parse_json(text, "");
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

Json read_json(const std::string& path) {
  return parse_json(read_file(path, kMostJsonBytes), path);
}

std::string json_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string json_position(const std::string& text, const std::string& key) {
  const std::string quoted = "\"" + key + "\"";
  for (auto at = text.find(quoted); at != std::string::npos; at = text.find(quoted, at + 1)) {
    auto next = at + quoted.size();
    while (next < text.size() && std::isspace(static_cast<unsigned char>(text[next]))) ++next;
    if (next == text.size() || text[next] != ':') continue;
    const auto line_start = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
    const auto column = line_start == std::string::npos ? at + 1 : at - line_start;
    return concat(
        std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n') + 1, ":",
        column);
  }
  return {};
}

}  // namespace smp::base
