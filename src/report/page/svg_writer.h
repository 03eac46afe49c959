// report/page/svg_writer.h: writes an SVG picture element by element. Lengths are in pixels, y
// grows downwards.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace smp::report {

struct Point {
  double x = 0;
  double y = 0;
};

/// The attributes of a shape besides its place; empty ones are left out.
struct Style {
  std::string fill = "none";
  std::string stroke = {};
  double stroke_width = 1;
  std::string dash = {};   ///< "4 3"
  std::string group = {};  ///< class, so that a reader of the file finds its elements
};

struct TextStyle {
  double size = 12;
  std::string fill = "#333333";
  std::string anchor = "start";  ///< "start", "middle" or "end"
  bool bold = false;
  std::string group = {};
};

/// The text size of a headline, in pixels.
constexpr double kHeadlineSize = 16;

class SvgWriter {
 public:
  /// Begins a picture with a white background.
  SvgWriter(double width, double height);

  /// Draws a rectangle. @param tip  a text that is shown while the mouse rests on it
  void rectangle(Point corner, double width, double height, const Style& style,
                 std::string_view tip = {});
  void line(Point from, Point to, const Style& style);
  void path(const std::vector<Point>& points, const Style& style);
  void text(Point at, std::string_view text, const TextStyle& style = {});
  /// Writes what the picture shows at its upper left.
  void headline(std::string_view what);
  /// Defines a pattern of thin diagonal lines; use it as the fill "url(#name)".
  void define_hatch(std::string_view name, std::string_view ground, std::string_view stroke);

  /// Returns the whole file.
  std::string finish() &&;

 private:
  std::string body_;
};

/// Returns `text` with the characters escaped that mean something in XML.
std::string escaped(std::string_view text);
/// Returns a number with at most two decimals, without trailing zeros; a very large one with four
/// digits.
std::string short_number(double value);
/// Returns a colour as "#rrggbb". Hue is in degrees, saturation and lightness in [0, 1].
std::string color(double hue, double saturation, double lightness);

/// Returns the most pixels that `text` takes in a line: fonts differ from viewer to viewer.
double text_length(std::string_view text, double size);
/// Returns `text` if it fits into `width` pixels, else with its middle replaced by dots; empty if
/// not even those fit.
std::string fitted(std::string_view text, double size, double width);

/// Returns about `count` round values in [low, high], 1, 2 or 5 times a power of ten apart; `low`
/// alone if the range is not finite, or too narrow for numbers of that size.
std::vector<double> round_ticks(double low, double high, int count);
/// Returns a tick's label, with as many decimals as the distance between ticks needs.
std::string tick_label(double value, double distance);

}  // namespace smp::report
