// report/page/html_page.h: one HTML file that needs no other: styles, scripts and pictures stand in
// it. Threads: any.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace smp::report {

class HtmlPage {
 public:
  explicit HtmlPage(std::string title);

  void heading(std::string_view text);
  void paragraph(std::string_view text);
  /// @param svg  a whole SVG file
  void picture(const std::string& svg);
  /// @param rows  of cells; those of the first are headings, and the first cells of the others too
  void table(const std::vector<std::vector<std::string>>& rows);
  /// Shown when `title` is clicked at.
  void hidden(std::string_view title, std::string_view text);
  /// `html` as it is.
  void raw(std::string_view html) { body_ += html; }
  /// In the page's head, once for each text.
  void style(std::string_view css);
  void script(std::string_view source);

  /// The whole file.
  std::string finish() &&;

 private:
  std::string title_, styles_, scripts_, body_;
};

/// JSON that may stand in a script element.
std::string json_for_script(std::string json);

}  // namespace smp::report
