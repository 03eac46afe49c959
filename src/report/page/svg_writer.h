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

/// Attributes of a shape beyond its place; empty ones are left out.
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

/// Of a headline, in pixels.
constexpr double kHeadlineSize = 16;

class SvgWriter {
 public:
  /// A picture with a white ground.
  SvgWriter(double width, double height);

  /// @param tip  shown while the mouse rests on it
  void rectangle(Point corner, double width, double height, const Style& style,
                 std::string_view tip = {});
  void line(Point from, Point to, const Style& style);
  void path(const std::vector<Point>& points, const Style& style);
  void text(Point at, std::string_view text, const TextStyle& style = {});
  /// What the picture shows, at its upper left.
  void headline(std::string_view what);
  /// A pattern of thin diagonal lines; fill with "url(#name)".
  void define_hatch(std::string_view name, std::string_view ground, std::string_view stroke);

  /// The whole file.
  std::string finish() &&;

 private:
  std::string body_;
};

/// `text` with the characters that mean something in XML replaced.
std::string escaped(std::string_view text);
/// At most two decimals, without trailing zeros; four digits of a very large number.
std::string short_number(double value);
/// Hue in degrees, saturation and lightness in [0, 1], as "#rrggbb".
std::string color(double hue, double saturation, double lightness);

/// How wide `text` is drawn at most, in pixels: fonts differ from viewer to viewer.
double text_length(std::string_view text, double size);
/// `text` if it is drawn in `width` pixels, else with dots in its middle; empty if not even those.
std::string fitted(std::string_view text, double size, double width);

/// Round values (1, 2 or 5 times a power of ten apart) in [low, high], about `count` of them; `low`
/// alone if the range is too narrow for numbers of that size, or endless.
std::vector<double> round_ticks(double low, double high, int count);
/// A tick's label, with as many decimals as the distance of ticks needs.
std::string tick_label(double value, double distance);

}  // namespace smp::report
