// report/page/html_page.cpp: a head that forbids the network, and a body piece by piece.
#include "report/page/html_page.h"

#include "base/check.h"
#include "report/page/svg_writer.h"

namespace smp::report {
namespace {

using base::concat;

constexpr const char* kStyle = R"css(
body { font: 14px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 1320px; margin: 24px auto; padding: 0 20px; }
h1 { font-size: 22px; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 36px 0 8px; border-bottom: 1px solid #e2e2e2; }
svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; margin: 10px 0 18px; }
th, td { text-align: left; padding: 3px 16px 3px 0; border-bottom: 1px solid #eee; vertical-align: top; }
th { font-weight: 600; }
tr > :first-child { white-space: nowrap; }
pre { overflow: auto; background: #f7f7f7; padding: 12px; }
summary { cursor: pointer; color: #14598f; }
)css";

/// The security policy of the page: it fetches nothing, even if some text in it tried to.
constexpr const char* kPolicy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

void add_once(std::string& texts, std::string_view text) {
  if (texts.find(text) == std::string::npos) texts += text;
}

}  // namespace

HtmlPage::HtmlPage(std::string title) : title_(std::move(title)), styles_(kStyle) {
  body_ = concat("<h1>", escaped(title_), "</h1>\n");
}

void HtmlPage::heading(std::string_view text) { body_ += concat("<h2>", escaped(text), "</h2>\n"); }

void HtmlPage::paragraph(std::string_view text) { body_ += concat("<p>", escaped(text), "</p>\n"); }

void HtmlPage::picture(const std::string& svg) {
  const auto begin = svg.find("<svg");  // behind the declaration of XML
  SMP_ASSERT(begin != std::string::npos, "no SVG file");
  body_ += concat("<figure style=\"margin: 0\">", svg.substr(begin), "</figure>\n");
}

void HtmlPage::table(const std::vector<std::vector<std::string>>& rows) {
  body_ += "<table>\n";
  for (const auto& row : rows) {
    body_ += "<tr>";
    for (const auto& cell : row) {
      const char* const tag = &row == &rows.front() || &cell == &row.front() ? "th" : "td";
      body_ += concat("<", tag, ">", escaped(cell), "</", tag, ">");
    }
    body_ += "</tr>\n";
  }
  body_ += "</table>\n";
}

void HtmlPage::hidden(std::string_view title, std::string_view text) {
  body_ += concat("<details><summary>", escaped(title), "</summary><pre>", escaped(text),
                  "</pre></details>\n");
}

void HtmlPage::style(std::string_view css) { add_once(styles_, css); }

void HtmlPage::script(std::string_view source) { add_once(scripts_, source); }

std::string HtmlPage::finish() && {
  auto head = concat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"",
      kPolicy, "\">\n<link rel=\"icon\" href=\"data:,\">\n<title>", escaped(title_),
      "</title>\n<style>", styles_, "</style>\n");
  if (!scripts_.empty()) head += concat("<script>", scripts_, "</script>\n");
  return concat(head, "</head>\n<body>\n", body_, "</body>\n</html>\n");
}

std::string json_for_script(std::string json) {
  for (auto at = json.find('<'); at != std::string::npos; at = json.find('<', at)) {
    json.replace(at, 1, "\\u003c");
  }
  return json;
}

}  // namespace smp::report
