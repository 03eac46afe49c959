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
  /// Adds a table. @param rows  rows of cells; the first row and the first column are headings
  void table(const std::vector<std::vector<std::string>>& rows);
  /// Adds a text that is shown when the reader clicks on `title`.
  void hidden(std::string_view title, std::string_view text);
  /// Adds `html` as it is.
  void raw(std::string_view html) { body_ += html; }
  /// Adds CSS to the page's head, once for each text.
  void style(std::string_view css);
  void script(std::string_view source);

  /// Returns the whole file.
  std::string finish() &&;

 private:
  std::string title_, styles_, scripts_, body_;
};

/// Returns `json` with characters escaped, so that it may stand in a script element.
std::string json_for_script(std::string json);

}  // namespace smp::report
