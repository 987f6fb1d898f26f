// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "qkflow/io/atomic_file.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/report/inline_svg.hpp"

namespace qkflow {

/// Running text as HTML, everything escaped. Four marks and a link, as in the axis labels of figures where they exist
/// there:
///
///     *emphasis*   `code`   x_{sub}   x^{sup}   [text](#section)   [text](file beside the page)
///
/// A mark that is not closed is text. Marks nest, except that code holds text only. Throws InvalidArgument for a link
/// that leads out of the page's folder.
inline std::string html_inline(std::string_view text);

namespace detail {

inline std::size_t closing_brace(std::string_view text, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < text.size(); ++i) {
    if (text[i] == '{') ++depth;
    if (text[i] == '}' && --depth == 0) return i;
  }
  return std::string_view::npos;
}

/// One mark at the beginning of the text: what it becomes, and how long it is; 0 if there is none.
inline std::size_t html_mark(std::string_view text, std::string& html) {
  const auto enclosed = [&](std::size_t first, std::size_t last, const char* element) {
    html += "<" + std::string(element) + ">" + html_inline(text.substr(first, last - first)) + "</" + element + ">";
    return last + 1;
  };
  if (text.size() > 2 && (text[0] == '_' || text[0] == '^') && text[1] == '{') {
    const std::size_t end = closing_brace(text, 1);
    return end == std::string_view::npos ? 0 : enclosed(2, end, text[0] == '_' ? "sub" : "sup");
  }
  if (text[0] == '*') {
    const std::size_t end = text.find('*', 1);
    return end == std::string_view::npos || end == 1 || text[1] == ' ' ? 0 : enclosed(1, end, "em");
  }
  if (text[0] == '`') {
    const std::size_t end = text.find('`', 1);
    if (end == std::string_view::npos) return 0;
    html += "<code>" + html_escaped(text.substr(1, end - 1)) + "</code>";
    return end + 1;
  }
  if (text[0] == '[') {
    const std::size_t middle = text.find("](");
    const std::size_t end = middle == std::string_view::npos ? middle : text.find(')', middle);
    if (end == std::string_view::npos) return 0;
    const std::string target(text.substr(middle + 2, end - middle - 2));
    if (target.empty() || target.find(':') != std::string::npos || target.front() == '/' ||
        target.find("..") != std::string::npos) {
      throw InvalidArgument("html_inline: link = '" + target + "', but it must stay in the page or in its folder");
    }
    html += "<a href=\"" + html_escaped(target) + "\">" + html_inline(text.substr(1, middle - 1)) + "</a>";
    return end + 1;
  }
  return 0;
}

}  // namespace detail

inline std::string html_inline(std::string_view text) {
  std::string html;
  std::size_t plain = 0;
  for (std::size_t i = 0; i < text.size();) {
    std::string marked;
    const std::size_t length = detail::html_mark(text.substr(i), marked);
    if (length == 0) {
      ++i;
      continue;
    }
    html += html_escaped(text.substr(plain, i - plain)) + marked;
    i += length;
    plain = i;
  }
  return html + html_escaped(text.substr(plain));
}

/// A table of a report. All texts are running text (`html_inline`).
struct HtmlTable {
  std::string caption = {};
  struct Column {
    std::string name;
    bool number = true;  ///< set to the right, digits of one width
  };
  std::vector<Column> columns = {};
  std::vector<std::vector<std::string>> rows = {};
};

/// A figure of a report: one drawing, or a wide and a narrow one of the same, of which the page shows what fits.
struct HtmlFigure {
  std::string id = {};       ///< anchor, and part of the ids within: a name of its own in the page
  std::string svg = {};      ///< text of an SVG file
  std::string narrow = {};   ///< the same for screens of a telephone; empty: `svg` there too
  std::string label = {};    ///< what it shows, in a sentence, for those who do not see it
  std::string caption = {};  ///< running text
  std::string width = {};    ///< greatest width, as CSS ("17cm"); empty: that of the text
};

/// A report as one HTML file that needs nothing else: no network, no script, no font, pictures inside. Sections are
/// numbered and listed in a table of contents; tables scroll sideways where the screen is narrow; print styles break
/// pages at sensible places and need no colour.
///
///     HtmlReport report("Flow against training");
///     report.section("orders", "Order study");
///     report.paragraph("The error falls as *h*^{2}.");
///     report.write("out/report.html");
///
/// Errors: `InvalidArgument` for an anchor that is no name or is used twice, a table row of the wrong length, and what
/// `inline_svg` refuses; `IoError` from `write`.
class HtmlReport {
 public:
  explicit HtmlReport(std::string title, std::string language = "en")
      : title_(std::move(title)), language_(std::move(language)) {}

  /// A paragraph under the title, before the table of contents.
  void lead(std::string_view text) { lead_ += "<p class=\"lead\">" + html_inline(text) + "</p>\n"; }

  /// The answers in short, before the table of contents; sections may have been written before.
  void summary(const std::vector<std::string>& items) {
    lead_ += "<ul class=\"summary\">\n";
    for (const std::string& item : items) lead_ += "<li>" + html_inline(item) + "</li>\n";
    lead_ += "</ul>\n";
  }

  /// Starts a section; `id` is its anchor, a name of letters, digits and '-'.
  void section(const std::string& id, std::string_view title) {
    claim(id);
    if (open_) body_ += "</section>\n";
    open_ = true;
    ++sections_;
    const std::string number = to_text(sections_);
    contents_ += "<li><a href=\"#" + id + "\">" + html_inline(title) + "</a></li>\n";
    body_ += "<section aria-labelledby=\"" + id + "\">\n<h2 id=\"" + id + "\"><span class=\"number\">" + number +
             "</span> " + html_inline(title) + "</h2>\n";
  }
  void subsection(std::string_view title) { body_ += "<h3>" + html_inline(title) + "</h3>\n"; }

  void paragraph(std::string_view text) { body_ += "<p>" + html_inline(text) + "</p>\n"; }

  /// The sentence a reader in a hurry should take along.
  void finding(std::string_view text) { body_ += "<p class=\"finding\">" + html_inline(text) + "</p>\n"; }

  void list(const std::vector<std::string>& items) {
    body_ += "<ul>\n";
    for (const std::string& item : items) body_ += "<li>" + html_inline(item) + "</li>\n";
    body_ += "</ul>\n";
  }

  /// Names and what they stand for.
  void facts(const std::vector<std::pair<std::string, std::string>>& facts) {
    body_ += "<dl>\n";
    for (const auto& [name, value] : facts) {
      body_ += "<div><dt>" + html_inline(name) + "</dt><dd>" + html_inline(value) + "</dd></div>\n";
    }
    body_ += "</dl>\n";
  }

  /// Text as it is, in lines.
  void code(std::string_view text) { body_ += "<pre tabindex=\"0\"><code>" + html_escaped(text) + "</code></pre>\n"; }

  void table(const HtmlTable& table) {
    const auto cell = [&](std::size_t i, const char* element, const char* scope, const std::string& text) {
      return "<" + std::string(element) + scope + (table.columns[i].number ? " class=\"n\">" : ">") +
             html_inline(text) + "</" + element + ">";
    };
    ++tables_;
    const std::string name = "table-" + to_text(tables_);
    body_ += "<div class=\"scroll\" role=\"region\" aria-labelledby=\"" + name + "\" tabindex=\"0\">\n<table>\n";
    body_ += "<caption id=\"" + name + "\"><b>Table " + to_text(tables_) + ".</b> " + html_inline(table.caption) +
             "</caption>\n<thead><tr>";
    for (std::size_t i = 0; i < table.columns.size(); ++i)
      body_ += cell(i, "th", " scope=\"col\"", table.columns[i].name);
    body_ += "</tr></thead>\n<tbody>\n";
    for (const auto& row : table.rows) {
      if (row.size() != table.columns.size()) {
        throw_invalid("HtmlReport::table", "number of cells", row.size(),
                      "be the number of columns, " + to_text(table.columns.size()));
      }
      body_ += "<tr>";
      for (std::size_t i = 0; i < row.size(); ++i) body_ += cell(i, "td", "", row[i]);
      body_ += "</tr>\n";
    }
    body_ += "</tbody>\n</table>\n</div>\n";
  }

  void figure(const HtmlFigure& figure) {
    claim(figure.id);
    ++figures_;
    const bool two = !figure.narrow.empty();
    body_ += "<figure id=\"" + figure.id + "\"" +
             (figure.width.empty() ? std::string() : " style=\"--width:" + html_escaped(figure.width) + "\"") + ">\n";
    // Of two drawings the style sheet shows one, and only that one is read out.
    body_ += inline_svg(figure.svg, {figure.id + "-w-", figure.label, two ? "wide" : "", false}) + "\n";
    if (two) body_ += inline_svg(figure.narrow, {figure.id + "-n-", figure.label, "narrow", false}) + "\n";
    body_ += "<figcaption><b>Figure " + to_text(figures_) + ".</b> " + html_inline(figure.caption) +
             "</figcaption>\n</figure>\n";
  }

  std::size_t figures() const { return figures_; }

  /// The whole page.
  std::string text() const {
    return "<!DOCTYPE html>\n<html lang=\"" + html_escaped(language_) +
           "\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, "
           "initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light\">\n<title>" +
           html_escaped(title_) + "</title>\n<style>\n" + std::string(style()) +
           "</style>\n</head>\n<body>\n<header>\n<h1>" + html_inline(title_) + "</h1>\n" + lead_ + "</header>\n" +
           (contents_.empty()
                ? std::string()
                : "<nav aria-label=\"Contents\">\n<h2>Contents</h2>\n<ol>\n" + contents_ + "</ol>\n</nav>\n") +
           "<main>\n" + body_ + (open_ ? "</section>\n" : "") + "</main>\n</body>\n</html>\n";
  }

  /// Writes the page; it appears whole or not at all.
  void write(const std::filesystem::path& path) const { write_file(path, text()); }

 private:
  void claim(const std::string& id) {
    bool name = !id.empty() && ((id[0] >= 'a' && id[0] <= 'z') || (id[0] >= 'A' && id[0] <= 'Z'));
    for (const char letter : id) {
      name = name && ((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                      (letter >= '0' && letter <= '9') || letter == '-');
    }
    if (!name)
      throw InvalidArgument("HtmlReport: id = '" + id + "', but it must be a letter, then letters, digits or '-'");
    for (const std::string& known : ids_) {
      if (known == id) throw InvalidArgument("HtmlReport: id = '" + id + "', but it must be used once only");
    }
    ids_.push_back(id);
  }

  static constexpr std::string_view style() {
    return R"(:root { --ink: #1c1c1e; --soft: #55585e; --line: #d9dbdf; --tint: #f4f5f7; --mark: #0a5c8f; }
* { box-sizing: border-box; }
html { background: #fff; color: var(--ink); -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body { max-width: 64rem; margin: 0 auto; padding: 1.5rem clamp(1rem, 4vw, 3rem) 4rem;
  font: 1.0625rem/1.6 Charter, "Bitstream Charter", "Source Serif 4", "Noto Serif", Georgia, "DejaVu Serif", serif; }
h1, h2, h3, nav, table, dl, figcaption, caption { font-family: system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; }
h1 { font-size: clamp(1.6rem, 5vw, 2.3rem); line-height: 1.15; margin: 1rem 0 .8rem; letter-spacing: -.015em; }
h2 { font-size: 1.35rem; line-height: 1.25; margin: 3.2rem 0 .8rem; padding-top: .8rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
.number { color: var(--soft); font-weight: 400; margin-right: .35em; }
p, ul, dl { margin: 0 0 1rem; } p, ul { max-width: 44rem; }
.lead { font-size: 1.15rem; }
li { margin-bottom: .3rem; }
a { color: var(--mark); }
em { font-style: italic; } sub, sup { font-size: .72em; line-height: 0; }
code, pre { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: .88em; }
code { overflow-wrap: anywhere; }
pre { background: var(--tint); border: 1px solid var(--line); border-radius: 4px; padding: .8rem 1rem; overflow-x: auto; line-height: 1.45; }
pre code { overflow-wrap: normal; font-size: 1em; }
.finding { background: var(--tint); border-left: 4px solid var(--mark); padding: .7rem 1rem; }
nav { background: var(--tint); border: 1px solid var(--line); border-radius: 4px; padding: .8rem 1.2rem; margin: 1.5rem 0; font-size: .95rem; }
nav h2 { font-size: 1rem; margin: 0 0 .4rem; padding: 0; border: 0; }
nav ol { margin: 0; padding-left: 1.4rem; }
dl { font-size: .92rem; border-top: 1px solid var(--line); }
dl div { display: grid; grid-template-columns: minmax(9rem, 15rem) 1fr; gap: .2rem 1.2rem; padding: .35rem 0; border-bottom: 1px solid var(--line); }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: 1.4rem 0; }
table { border-collapse: collapse; font-size: .88rem; line-height: 1.4; font-variant-numeric: tabular-nums; border-bottom: 1.5px solid var(--ink); }
caption { text-align: left; padding: 0 0 .5rem; caption-side: top; max-width: 44rem; }
th, td { text-align: left; padding: .28rem .9rem .28rem 0; vertical-align: top; }
thead th { border-top: 1.5px solid var(--ink); border-bottom: 1px solid var(--ink); font-weight: 600; vertical-align: bottom; }
tbody tr + tr td { border-top: 1px solid var(--line); }
.n { text-align: right; padding: .28rem .45rem; white-space: nowrap; }
thead .n { white-space: normal; }
.n + :not(.n) { padding-left: .9rem; }
figure { margin: 1.8rem 0; max-width: var(--width, none); }
figure svg { display: block; width: 100%; height: auto; }
figure svg.narrow { display: none; }
figcaption { font-size: .9rem; line-height: 1.5; margin-top: .6rem; max-width: 44rem; color: #2f3237; }
@media screen and (max-width: 40rem) {
  body { font-size: 1rem; }
  figure svg.wide { display: none; } figure svg.narrow { display: block; }
  dl div { grid-template-columns: 1fr; gap: 0; }
}
@media print {
  @page { margin: 18mm 16mm; }
  html { font-size: 10.5pt; } body { max-width: none; padding: 0; }
  p, ul, caption, figcaption { max-width: none; }
  h2, h3 { break-after: avoid; } h2 { margin-top: 1.6rem; }
  figure, tr, pre, .finding { break-inside: avoid; } figcaption { break-before: avoid; }
  thead { display: table-header-group; }
  .scroll { overflow: visible; } pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  a { color: inherit; } .finding, nav, pre { background: none; }
}
)";
  }

  std::string title_, language_, lead_, contents_, body_;
  std::vector<std::string> ids_;
  std::size_t sections_ = 0, tables_ = 0, figures_ = 0;
  bool open_ = false;
};

}  // namespace qkflow
