// Finds elements in the text of an SVG picture; for tests of structure.
#pragma once

#include <regex>
#include <string>
#include <vector>

namespace smp::report {

/// Elements of that name and class, each as its opening tag.
inline std::vector<std::string> elements(const std::string& svg, const std::string& name,
                                         const std::string& group) {
  const std::regex pattern("<" + name + "\\b[^>]*class=\"" + group + "\"[^>]*>");
  std::vector<std::string> found;
  for (std::sregex_iterator it(svg.begin(), svg.end(), pattern), end; it != end; ++it) {
    found.push_back(it->str());
  }
  return found;
}

/// The number that attribute `name` of an opening tag holds.
inline double number(const std::string& tag, const std::string& name) {
  std::smatch match;
  std::regex_search(tag, match, std::regex(" " + name + "=\"([^\"]*)\""));
  return std::stod(match[1]);
}

/// Contents of the text elements of a class.
inline std::vector<std::string> texts(const std::string& svg, const std::string& group) {
  const std::regex pattern("<text\\b[^>]*class=\"" + group + "\"[^>]*>([^<]*)</text>");
  std::vector<std::string> found;
  for (std::sregex_iterator it(svg.begin(), svg.end(), pattern), end; it != end; ++it) {
    found.push_back((*it)[1]);
  }
  return found;
}

}  // namespace smp::report
