// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cctype>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "qkflow/math/require.hpp"

namespace qkflow {

/// Text for HTML and XML, inside elements and inside quoted attributes. A control character other than tab and line
/// break, which neither allows, becomes U+FFFD.
inline std::string html_escaped(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (const char letter : text) {
    switch (letter) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default: {
        const bool control = static_cast<unsigned char>(letter) < 0x20 && letter != '\n' && letter != '\t';
        escaped += control ? std::string("\xEF\xBF\xBD") : std::string(1, letter);
      }
    }
  }
  return escaped;
}

/// What becomes of a picture inside a page.
struct InlineSvg {
  std::string prefix = {};        ///< goes before every id of the picture: letters, digits, '-', '_', a letter first
  std::string label = {};         ///< what the picture shows, for those who do not see it
  std::string css_class = {};     ///< class of the svg element
  bool hidden_from_aria = false;  ///< a second drawing of the same: read out only once
};

namespace detail {

/// Walks over the markup of a picture and writes what a page may hold of it. Knows the XML that drawing programs write;
/// it is a filter that refuses what it does not understand, no parser of all XML.
class SvgFilter {
 public:
  SvgFilter(std::string_view svg, const InlineSvg& options) : rest_(svg), options_(options) {}

  std::string run() {
    const std::size_t root = find_root();
    rest_.remove_prefix(root);
    while (!rest_.empty()) {
      const std::size_t open = rest_.find('<');
      if (skip_.empty()) result_ += rest_.substr(0, open);
      if (open == std::string_view::npos) break;
      rest_.remove_prefix(open);
      if (!take_comment()) take_tag();
      if (started_ && depth_ == 0) break;  // what follows the picture does not belong to it
    }
    if (!started_ || depth_ != 0) refuse("be complete: elements are not closed");
    return std::move(result_);
  }

 private:
  struct Attribute {
    std::string_view name, value;
  };

  [[noreturn]] static void refuse(const std::string& must) {
    throw InvalidArgument("inline_svg: the picture must " + must);
  }

  std::size_t find_root() const {
    std::size_t from = 0;
    for (;;) {
      const std::size_t at = rest_.find('<', from);
      if (at == std::string_view::npos) refuse("hold an <svg> element");
      const std::string_view here = rest_.substr(at);
      if (here.starts_with("<svg") && here.size() > 4 && (is_space(here[4]) || here[4] == '>')) return at;
      if (here.starts_with("<!--")) {
        const std::size_t end = here.find("-->");
        if (end == std::string_view::npos) refuse("close its comments");
        from = at + end + 3;
      } else if (here.starts_with("<?") || here.starts_with("<!")) {
        if (here.starts_with("<!DOCTYPE") && here.find('[') < here.find('>')) refuse("define no entities");
        const std::size_t end = here.find('>');
        if (end == std::string_view::npos) refuse("close its declarations");
        from = at + end + 1;
      } else {
        refuse("begin with an <svg> element");
      }
    }
  }

  // Comments, processing instructions, character data sections: none is needed inside a page.
  bool take_comment() {
    const auto drop = [this](std::string_view end) {
      const std::size_t at = rest_.find(end);
      if (at == std::string_view::npos) refuse("close its comments");
      rest_.remove_prefix(at + end.size());
      return true;
    };
    if (rest_.starts_with("<!--")) return drop("-->");
    if (rest_.starts_with("<?")) return drop("?>");
    if (rest_.starts_with("<!")) refuse("hold no declarations inside");
    return false;
  }

  void take_tag() {
    const bool closing = rest_.size() > 1 && rest_[1] == '/';
    const std::size_t end = tag_end();
    std::string_view tag = rest_.substr(closing ? 2 : 1, end - (closing ? 2 : 1));
    rest_.remove_prefix(end + 1);
    const bool empty = !closing && !tag.empty() && tag.back() == '/';
    if (empty) tag.remove_suffix(1);
    std::size_t length = 0;
    while (length < tag.size() && !is_space(tag[length])) ++length;
    const std::string_view name = tag.substr(0, length);
    if (closing) {
      close(name);
    } else {
      open(name, attributes(tag.substr(length)), empty);
    }
  }

  std::size_t tag_end() const {
    char quote = 0;
    for (std::size_t i = 1; i < rest_.size(); ++i) {
      if (quote != 0) {
        if (rest_[i] == quote) quote = 0;
      } else if (rest_[i] == '"' || rest_[i] == '\'') {
        quote = rest_[i];
      } else if (rest_[i] == '>') {
        return i;
      }
    }
    refuse("close its tags");
  }

  void close(std::string_view name) {
    if (depth_ == 0) refuse("close only what is open");
    --depth_;
    if (!skip_.empty()) {
      if (depth_ == skip_depth_) skip_.clear();
      return;
    }
    result_ += "</" + std::string(name) + ">";
  }

  void open(std::string_view name, const std::vector<Attribute>& attributes, bool empty) {
    for (const std::string_view refused : {"script", "foreignObject", "iframe", "style", "audio", "video"}) {
      if (name == refused) refuse("hold no <" + std::string(refused) + ">: it would reach the whole page");
    }
    // Titles and descriptions inside drawings are names of plot elements: tooltips that help nobody.
    const bool skipped = skip_.empty() && (name == "title" || name == "desc" || name == "metadata");
    if (skip_.empty() && !skipped) write(name, attributes, empty);
    started_ = true;
    if (empty) return;
    if (skipped) {
      skip_ = std::string(name);
      skip_depth_ = depth_;
    }
    ++depth_;
  }

  void write(std::string_view name, const std::vector<Attribute>& attributes, bool empty) {
    const bool root = !started_;
    result_ += "<" + std::string(name);
    std::string width, height;
    bool has_box = false;
    for (const Attribute& attribute : attributes) {
      const std::string key(attribute.name);
      if (root) {
        // The page decides the size; names of formats and what readers are told are ours.
        if (key == "width") width = number_of(attribute.value);
        if (key == "height") height = number_of(attribute.value);
        if (key == "width" || key == "height" || key == "class" || key == "role" || key.starts_with("aria-")) continue;
        if (key == "viewBox") has_box = true;
      }
      if (key.starts_with("on")) continue;     // event handlers
      if (key.starts_with("xmlns")) continue;  // HTML knows these elements
      result_ += " " + key + "=\"" + value_of(key, attribute.value) + "\"";
    }
    if (root) {
      if (!has_box) {
        if (width.empty() || height.empty()) refuse("have a viewBox, or a width and a height");
        result_ += " viewBox=\"0 0 " + width + " " + height + "\"";
      }
      if (!options_.css_class.empty()) result_ += " class=\"" + html_escaped(options_.css_class) + "\"";
      result_ += options_.hidden_from_aria ? std::string(" aria-hidden=\"true\"")
                                           : " role=\"img\" aria-label=\"" + html_escaped(options_.label) + "\"";
    }
    result_ += empty ? "/>" : ">";
  }

  // Only what lies inside the picture may be referred to, by its new name; pictures in the picture are data.
  std::string value_of(const std::string& key, std::string_view value) const {
    if (key == "id") return options_.prefix + quoted(value);
    if (key == "href" || key == "xlink:href") {
      if (value.starts_with("#")) return "#" + options_.prefix + quoted(value.substr(1));
      if (value.starts_with("data:image/png") || value.starts_with("data:image/jpeg")) return quoted(value);
      refuse("refer to nothing outside itself, but it has " + key + "=\"" + std::string(value) + "\"");
    }
    std::string text;
    for (;;) {
      const std::size_t at = value.find("url(");
      if (at == std::string_view::npos) return text + quoted(value);
      std::size_t name = at + 4;
      while (name < value.size() && (is_space(value[name]) || value[name] == '"' || value[name] == '\'')) ++name;
      if (name >= value.size() || value[name] != '#') {
        refuse("refer to nothing outside itself, but it has " + key + "=\"" + std::string(value) + "\"");
      }
      // Quotes inside url() are not needed for a name, and would end our attribute.
      text += quoted(value.substr(0, at)) + "url(#" + options_.prefix;
      std::size_t end = name + 1;
      while (end < value.size() && value[end] != ')' && value[end] != '"' && value[end] != '\'') ++end;
      text += quoted(value.substr(name + 1, end - name - 1));
      while (end < value.size() && value[end] != ')') ++end;
      value.remove_prefix(end < value.size() ? end : value.size());
    }
  }

  static std::vector<Attribute> attributes(std::string_view text) {
    std::vector<Attribute> found;
    for (std::size_t i = 0; i < text.size();) {
      if (is_space(text[i])) {
        ++i;
        continue;
      }
      const std::size_t equals = text.find('=', i);
      if (equals == std::string_view::npos) refuse("give every attribute a value");
      std::size_t last = equals;
      while (last > i && is_space(text[last - 1])) --last;
      std::size_t quote = equals + 1;
      while (quote < text.size() && is_space(text[quote])) ++quote;
      if (quote >= text.size() || (text[quote] != '"' && text[quote] != '\'')) refuse("quote its attributes");
      const std::size_t end = text.find(text[quote], quote + 1);
      if (end == std::string_view::npos) refuse("quote its attributes");
      found.push_back({text.substr(i, last - i), text.substr(quote + 1, end - quote - 1)});
      i = end + 1;
    }
    return found;
  }

  // The value is XML already; it only moves from one kind of quotes to another.
  static std::string quoted(std::string_view value) {
    std::string text;
    for (const char letter : value) text += letter == '"' ? std::string("&quot;") : std::string(1, letter);
    return text;
  }
  // "321", "321px", "8.5cm": the number.
  static std::string number_of(std::string_view value) {
    std::size_t length = 0;
    while (length < value.size() && (std::isdigit(static_cast<unsigned char>(value[length])) || value[length] == '.')) {
      ++length;
    }
    return std::string(value.substr(0, length));
  }
  static bool is_space(char letter) { return letter == ' ' || letter == '\n' || letter == '\t' || letter == '\r'; }

  std::string_view rest_;
  const InlineSvg& options_;
  std::string result_, skip_;  // skip_: the element whose content is left out
  std::size_t depth_ = 0, skip_depth_ = 0;
  bool started_ = false;
};

}  // namespace detail

/// An SVG file as an `svg` element of an HTML page: without XML declaration, doctype, comments, names of formats, size
/// (the page decides) and inner titles; with `role="img"` and a label; and with the prefix before every id and every
/// reference to one, because gnuplot gives the same ids in every file and two pictures in a page would mix up theirs.
///
/// Errors: `InvalidArgument` for markup that is not closed or quoted, for scripts, styles and foreign objects, for any
/// reference to something outside the picture, and for a prefix that is no name.
inline std::string inline_svg(std::string_view svg, const InlineSvg& options) {
  bool name = !options.prefix.empty() && std::isalpha(static_cast<unsigned char>(options.prefix.front())) != 0;
  for (const char letter : options.prefix) {
    name = name && (std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '-' || letter == '_');
  }
  if (!name) {
    throw InvalidArgument("inline_svg: prefix = '" + options.prefix +
                          "', but it must be a letter, then letters, digits, '-' or '_'");
  }
  if (options.label.empty() && !options.hidden_from_aria) {
    throw InvalidArgument("inline_svg: the label must say what the picture shows");
  }
  return detail::SvgFilter(svg, options).run();
}

}  // namespace qkflow
