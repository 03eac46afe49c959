// report/page/svg_writer.cpp: text put together by hand; no packaged library writes SVG.
#include "report/page/svg_writer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "base/text/utf8.h"

namespace smp::report {
namespace {

using base::concat;

std::string attribute(const char* name, const std::string& value) {
  return value.empty() ? std::string() : concat(" ", name, "=\"", value, "\"");
}

std::string attributes(const Style& style) {
  std::string text = attribute("fill", style.fill) + attribute("class", style.group);
  if (style.stroke.empty()) return text;
  text += attribute("stroke", style.stroke);
  if (style.stroke_width != 1) text += attribute("stroke-width", short_number(style.stroke_width));
  return text + attribute("stroke-dasharray", style.dash);
}

double channel(double hue, double saturation, double lightness, double offset) {
  const double k = std::fmod(offset + hue / 30, 12);
  const double amplitude = saturation * std::min(lightness, 1 - lightness);
  return lightness - amplitude * std::max(-1.0, std::min({k - 3, 9 - k, 1.0}));
}

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// What XML cannot hold, not even as a reference: most control characters, and two that are none.
bool is_forbidden(std::string_view character) {
  const auto first = static_cast<unsigned char>(character.front());
  const bool control = first < 0x20 && first != '\t' && first != '\n' && first != '\r';
  return control || character == "\xEF\xBF\xBE" || character == "\xEF\xBF\xBF";
}

bool starts_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

// `count` characters of UTF-8 text, from the front or from the back.
std::string_view piece(std::string_view text, int count, bool front) {
  std::size_t at = front ? 0 : text.size();
  while (count > 0 || (front && at < text.size() && !starts_character(text[at]))) {
    if (front ? at == text.size() : at == 0) break;
    at = front ? at + 1 : at - 1;
    count -= starts_character(text[front ? at - 1 : at]) ? 1 : 0;
  }
  return front ? text.substr(0, at) : text.substr(at);
}

/// Numbers from this on are written with four digits; smaller ones fit into 32 characters.
constexpr double kLongest = 1e15;
constexpr int kMostDecimals = 12;
/// Ticks are counted up to this number only: beyond it, a double plus one may be the same double.
constexpr double kMostCounted = 1e15;

std::string with_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

}  // namespace

SvgWriter::SvgWriter(double width, double height) {
  const std::string size = concat(short_number(width), "\" height=\"", short_number(height));
  body_ = concat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", size, "\" viewBox=\"0 0 ",
                 short_number(width), " ", short_number(height),
                 "\" font-family=\"sans-serif\">\n<rect width=\"", size, "\" fill=\"#ffffff\"/>\n");
}

void SvgWriter::rectangle(Point corner, double width, double height, const Style& style,
                          std::string_view tip) {
  body_ +=
      concat("<rect x=\"", short_number(corner.x), "\" y=\"", short_number(corner.y), "\" width=\"",
             short_number(width), "\" height=\"", short_number(height), "\"", attributes(style));
  body_ += tip.empty() ? "/>\n" : concat("><title>", escaped(tip), "</title></rect>\n");
}

void SvgWriter::line(Point from, Point to, const Style& style) {
  body_ +=
      concat("<line x1=\"", short_number(from.x), "\" y1=\"", short_number(from.y), "\" x2=\"",
             short_number(to.x), "\" y2=\"", short_number(to.y), "\"", attributes(style), "/>\n");
}

void SvgWriter::path(const std::vector<Point>& points, const Style& style) {
  std::string places;
  for (const Point& point : points) {
    places += concat(places.empty() ? "" : " ", short_number(point.x), ",", short_number(point.y));
  }
  body_ += concat("<polyline points=\"", places, "\" stroke-linejoin=\"round\"", attributes(style),
                  "/>\n");
}

void SvgWriter::text(Point at, std::string_view text, const TextStyle& style) {
  body_ += concat("<text x=\"", short_number(at.x), "\" y=\"", short_number(at.y),
                  "\" font-size=\"", short_number(style.size), "\" fill=\"", style.fill, "\"",
                  style.anchor == "start" ? "" : attribute("text-anchor", style.anchor),
                  style.bold ? " font-weight=\"bold\"" : "", attribute("class", style.group), ">",
                  escaped(text), "</text>\n");
}

void SvgWriter::headline(std::string_view what) {
  text({20, 26}, what, {.size = kHeadlineSize, .fill = "#111111", .bold = true});
}

void SvgWriter::define_hatch(std::string_view name, std::string_view ground,
                             std::string_view stroke) {
  body_ += concat("<defs><pattern id=\"", name,
                  "\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
                  "patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"",
                  ground, "\"/><line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\" stroke=\"", stroke,
                  "\" stroke-width=\"1.4\"/></pattern></defs>\n");
}

std::string SvgWriter::finish() && { return std::move(body_) + "</svg>\n"; }

std::string escaped(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = base::character_length(text);
    const char c = text.front();
    if (length == 0 || is_forbidden(text.substr(0, length))) {
      result += kReplacement;
      text.remove_prefix(std::max<std::size_t>(length, 1));
      continue;
    }
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return result;
}

std::string short_number(double value) {
  if (std::abs(value) >= kLongest) return with_digits(value);
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  std::string number = text;
  number.erase(number.find_last_not_of('0') + 1);
  if (number.back() == '.') number.pop_back();
  return number == "-0" ? "0" : number;
}

std::string color(double hue, double saturation, double lightness) {
  const auto byte = [&](double offset) {
    return static_cast<int>(std::lround(255 * channel(hue, saturation, lightness, offset)));
  };
  char text[8];
  std::snprintf(text, sizeof text, "#%02x%02x%02x", byte(0), byte(8), byte(4));
  return text;
}

double text_length(std::string_view text, double size) {
  constexpr double kWidthOfCharacter = 0.62;  // of a wide sans-serif font, in parts of its size
  return kWidthOfCharacter * size *
         static_cast<double>(std::count_if(text.begin(), text.end(), starts_character));
}

std::string fitted(std::string_view text, double size, double width) {
  if (text_length(text, size) <= width) return std::string(text);
  const int room = static_cast<int>(width / text_length("x", size)) - 1;  // besides the dots
  if (room < 1) return {};
  const int back = room / 2;
  return concat(piece(text, room - back, true), "…", piece(text, back, false));
}

std::vector<double> round_ticks(double low, double high, int count) {
  if (!(high > low)) return {low};
  const double rough = (high - low) / std::max(1, count);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double factor = rough / power;
  const double distance = power * (factor < 1.5 ? 1 : factor < 3.5 ? 2 : factor < 7.5 ? 5 : 10);
  const double first = std::ceil(low / distance - 1e-9);
  const double last = std::floor(high / distance + 1e-9);
  const bool can_count = std::abs(first) < kMostCounted && std::abs(last) < kMostCounted;
  if (!can_count) return {low};
  std::vector<double> ticks;
  for (double i = first; i <= last; ++i) ticks.push_back(i == 0 ? 0.0 : i * distance);
  return ticks;
}

std::string tick_label(double value, double distance) {
  const int decimals = distance >= 1 || distance <= 0
                           ? 0
                           : static_cast<int>(std::ceil(-std::log10(distance) - 1e-9));
  if (std::abs(value) >= kLongest || decimals > kMostDecimals) return with_digits(value);
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

}  // namespace smp::report
