// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/report/html.hpp"

#include <set>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

using qkflow::html_inline;
using qkflow::HtmlReport;
using qkflow::InvalidArgument;
using namespace qkflow_test;

namespace {

const std::string svg =
    "<?xml version='1.0'?><svg width='30' height='20'><path id='gpPt1' d='M0,0'/>"
    "<use xlink:href='#gpPt1'/></svg>";

HtmlReport sample() {
  HtmlReport report("Flow & training");
  report.lead("In short: 1 < 2.");
  report.section("first", "The *first*");
  report.paragraph("See [below](#f1) and `a<b`.");
  report.figure({.id = "f1", .svg = svg, .narrow = svg, .label = "A line", .caption = "It rises."});
  report.section("second", "The second");
  report.figure({.id = "f2", .svg = svg, .label = "Another \"line\"", .caption = "It falls.", .width = "9cm"});
  report.table({"Errors", {{"name", false}, {"*h*"}}, {{"GD", "1e-3"}, {"<SGD>", "2"}}});
  report.facts({{"seed", "1"}});
  report.list({"one", "two"});
  report.finding("It holds.");
  report.summary({"*All* is well."});
  report.code("qkflow compare --out 'a & b'\n");
  return report;
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t number = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++number;
  return number;
}

}  // namespace

TEST_CASE("html_inline: four marks and local links; all else is text") {
  CHECK(html_inline("*μ*_{OV} ~ *h*^{2} & `a<b*c*`") ==
        "<em>μ</em><sub>OV</sub> ~ <em>h</em><sup>2</sup> &amp; <code>a&lt;b*c*</code>");
  CHECK(html_inline("10^{-{3}} x_{*i*}") == "10<sup>-{3}</sup> x<sub><em>i</em></sub>");
  CHECK(html_inline("[the *data*](a.csv), [there](#s1)") ==
        "<a href=\"a.csv\">the <em>data</em></a>, <a href=\"#s1\">there</a>");
  for (const char* plain : {"2 * 3", "snake_case", "a*", "x_{open", "[no link]", "`open", "", "**"}) {
    CHECK(html_inline(plain) == plain);
  }
  CHECK(html_inline("2 * 3 * 4") == "2 * 3 * 4");
  CHECK(html_inline("<script>") == "&lt;script&gt;");
  for (const char* away : {"[x](https://a.org)", "[x](javascript:f)", "[x](//a.org)", "[x](../up)", "[x]()"}) {
    CHECK_THROWS_AS(html_inline(away), InvalidArgument);
  }
}

TEST_CASE("HtmlReport: a page that stands alone, with a table of contents, labels and balanced elements") {
  const std::string page = sample().text();
  CHECK_THAT(page, StartsWith("<!DOCTYPE html>\n<html lang=\"en\">"));
  CHECK_THAT(page, Contains("<meta charset=\"utf-8\">") && Contains("name=\"viewport\"") &&
                       Contains("<title>Flow &amp; training</title>") && Contains("In short: 1 &lt; 2."));
  CHECK(page.find("<li><em>All</em> is well.</li>") < page.find("<nav"));
  CHECK_THAT(page, Contains("<li><a href=\"#first\">The <em>first</em></a></li>") && Contains("<h2 id=\"second\">"));
  CHECK_THAT(page, Contains("<b>Figure 2.</b> It falls.") && Contains("<b>Table 1.</b> Errors") &&
                       Contains("aria-label=\"Another &quot;line&quot;\"") && Contains("--width:9cm"));
  CHECK_THAT(page, Contains("<td>&lt;SGD&gt;</td><td class=\"n\">2</td>") && Contains("--out &#39;a &amp; b&#39;"));
  for (const char* element :
       {"section", "figure", "table", "main", "nav", "body", "html", "svg", "ol", "ul", "dl", "div"}) {
    INFO(element);
    const std::string name(element);
    CHECK(count(page, "<" + name + ">") + count(page, "<" + name + " ") == count(page, "</" + name + ">"));
  }
  for (const char* outside : {"http:", "https:", "//", "<script", "<link", "@import", "url(http"}) {
    INFO(outside);
    CHECK(page.find(outside) == std::string::npos);
  }
}

TEST_CASE("HtmlReport: ids are unique though all pictures came with the same") {
  const std::string page = sample().text();
  std::vector<std::string> ids;
  for (std::size_t at = page.find(" id=\""); at != std::string::npos; at = page.find(" id=\"", at + 1)) {
    ids.push_back(page.substr(at + 5, page.find('"', at + 5) - at - 5));
  }
  CHECK(ids.size() == 8);  // two sections, two figures, a table, three pictures with one each
  CHECK(std::set<std::string>(ids.begin(), ids.end()).size() == ids.size());
  CHECK(count(page, "xlink:href=\"#f1-w-gpPt1\"") == 1);
}

TEST_CASE("HtmlReport: an anchor twice, a bad anchor and a short row are refused") {
  HtmlReport report("x");
  report.section("a", "A");
  CHECK_THROWS_AS(report.section("a", "again"), InvalidArgument);
  CHECK_THROWS_AS(report.figure({.id = "a", .svg = svg, .label = "x"}), InvalidArgument);
  CHECK_THROWS_AS(report.section("a b", "B"), InvalidArgument);
  CHECK_THROWS_AS(report.section("", "B"), InvalidArgument);
  CHECK_THROWS_AS(report.table({"t", {{"a"}, {"b"}}, {{"1"}}}), InvalidArgument);
  CHECK_THROWS_AS(report.figure({.id = "b", .svg = "<svg><script>1</script></svg>", .label = "x"}), InvalidArgument);
}

TEST_CASE("HtmlReport: the file appears whole or not at all") {
  const TemporaryFolder folder;
  const HtmlReport report = sample();
  report.write(folder / "report.html");
  CHECK(read_text(folder / "report.html") == report.text());
  CHECK(folder.count() == 1);
  CHECK_THROWS_AS(report.write(folder / "nowhere" / "report.html"), qkflow::IoError);
  CHECK(folder.count() == 1);
}
