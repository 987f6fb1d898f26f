// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/report/inline_svg.hpp"

#include <set>
#include <string>

#include "qkflow/report/gnuplot.hpp"
#include "support/catch.hpp"
#include "support/html.hpp"
#include "support/temporary_folder.hpp"

using qkflow::html_escaped;
using qkflow::inline_svg;
using qkflow::InvalidArgument;
using namespace qkflow_test;

namespace {

const std::string box = "viewBox=\"0 0 3 2\"";

std::string inlined(const std::string& body) {
  return inline_svg("<svg " + box + ">" + body + "</svg>", {.prefix = "p-", .label = "what"});
}
std::string refused(const std::string& svg) {
  try {
    return inline_svg(svg, {.prefix = "p-", .label = "what"});
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("html_escaped: nothing of a text acts as markup") {
  CHECK(html_escaped("a < b & \"c\" > 'd'") == "a &lt; b &amp; &quot;c&quot; &gt; &#39;d&#39;");
  CHECK(html_escaped("μ_OV\tline\n") == "μ_OV\tline\n");
  CHECK(html_escaped(std::string("a\0b\x1b", 4)) ==
        "a\xEF\xBF\xBD"
        "b\xEF\xBF\xBD");
  CHECK(html_escaped("").empty());
}

TEST_CASE("inline_svg: prolog, doctype, comments, names of formats, size and inner titles go") {
  const std::string svg =
      "\xEF\xBB\xBF<?xml version=\"1.0\"?>\n<!DOCTYPE svg PUBLIC \"-//W3C//DTD SVG 1.1//EN\" \"x.dtd\">\n<!-- <svg> "
      "-->\n"
      "<svg width=\"30\" height='20px' viewBox=\"0 0 30 20\" xmlns=\"http://www.w3.org/2000/svg\"\n"
      " xmlns:xlink=\"http://www.w3.org/1999/xlink\"><title>a <b>c</b></title><desc>d</desc><!-- note -->"
      "<g><title>plot</title><text x='1'>1 &lt; 2</text></g></svg>\ntrailing";
  CHECK(inline_svg(svg, {.prefix = "p-", .label = "A \"plot\"", .css_class = "wide"}) ==
        "<svg viewBox=\"0 0 30 20\" class=\"wide\" role=\"img\" aria-label=\"A &quot;plot&quot;\">"
        "<g><text x=\"1\">1 &lt; 2</text></g></svg>");
}

TEST_CASE("inline_svg: without a viewBox the size becomes one; a second drawing of the same is not read out") {
  CHECK(inline_svg("<svg width='3cm' height='2cm'></svg>", {.prefix = "p", .label = "x"}) ==
        "<svg viewBox=\"0 0 3 2\" role=\"img\" aria-label=\"x\"></svg>");
  CHECK(
      inline_svg("<svg " + box + "/><svg/>", {.prefix = "p", .hidden_from_aria = true}).find("aria-hidden=\"true\"") !=
      std::string::npos);
  CHECK_THAT(refused("<svg></svg>"), Contains("viewBox"));
}

TEST_CASE("inline_svg: every id and every reference to one gets the prefix") {
  CHECK(inlined("<path id='a'/><use xlink:href='#a' href=\"#b\"/>") ==
        "<svg viewBox=\"0 0 3 2\" role=\"img\" aria-label=\"what\"><path id=\"p-a\"/>"
        "<use xlink:href=\"#p-a\" href=\"#p-b\"/></svg>");
  CHECK_THAT(inlined("<g clip-path=\"url(#c1)\" style='fill: url( \"#f\" ); mask:url(#m)'/>"),
             Contains("<g clip-path=\"url(#p-c1)\" style=\"fill: url(#p-f); mask:url(#p-m)\"/>"));
}

TEST_CASE("inline_svg: what acts on the page or asks for something outside is refused") {
  for (const char* element : {"script", "style", "foreignObject", "iframe"}) {
    const std::string body = std::string("<") + element + ">x</" + element + ">";
    CHECK_THAT(refused("<svg " + box + ">" + body + "</svg>"), Contains(std::string("no <") + element + ">"));
  }
  CHECK_THAT(refused("<svg " + box + "><image href='https://x.org/a.png'/></svg>"), Contains("nothing outside itself"));
  CHECK_THAT(refused("<svg " + box + "><a xlink:href='javascript:f()'/></svg>"), Contains("nothing outside itself"));
  CHECK_THAT(refused("<svg " + box + "><g fill='url(http://x.org#f)'/></svg>"), Contains("nothing outside itself"));
  CHECK_THAT(inlined("<image xlink:href='data:image/png;base64,AAAA'/>"), Contains("data:image/png;base64,AAAA"));
  CHECK(inlined("<g onload=\"f()\" x=\"1\"/>").find("onload") == std::string::npos);
  CHECK_THAT(refused("<!DOCTYPE svg [<!ENTITY a 'b'>]><svg " + box + "/>"), Contains("no entities"));
}

TEST_CASE("inline_svg: broken markup is refused, never repaired") {
  for (const char* svg : {"", "no picture", "<html><svg/></html>", "<svg", "<svg viewBox='0 0 1 1'>",
                          "<svg viewBox='0 0 1 1'><g></svg>", "<svg viewBox='0 0 1 1' width=3></svg>",
                          "<svg viewBox='0 0 1 1'><!-- </svg>", "<svg viewBox='0 0 1 1'><g a></g></svg>"}) {
    INFO(svg);
    CHECK_THROWS_AS(inline_svg(svg, {.prefix = "p", .label = "x"}), InvalidArgument);
  }
  CHECK_THROWS_AS(inline_svg("<svg " + box + "/>", {.prefix = "1", .label = "x"}), InvalidArgument);
  CHECK_THROWS_AS(inline_svg("<svg " + box + "/>", {.prefix = "", .label = "x"}), InvalidArgument);
  CHECK_THROWS_AS(inline_svg("<svg " + box + "/>", {.prefix = "p", .label = ""}), InvalidArgument);
}

TEST_CASE("inline_svg: two of gnuplot's pictures in one page share no id, and every reference is met") {
  if (qkflow::detail::find_program("gnuplot").empty()) return;
  const TemporaryFolder folder;
  qkflow::write_file(folder / "d.csv", "x,y\n1,2\n2,3\n3,5\n");
  const qkflow::Figure figure{
      .name = "f",
      .panels = {
          {.title = "a < b",
           .x = {.label = "{/:Italic x}"},
           .y = {.label = "y_{1}"},
           .curves = {{.data = "d.csv", .x = "x", .y = "y", .title = "t", .mark = qkflow::Curve::Mark::points}}}}};
  const std::string svg = read_text(qkflow::draw_figure(figure, folder.path()).svg);
  const std::string page =
      inline_svg(svg, {.prefix = "a-", .label = "a"}) + inline_svg(svg, {.prefix = "b-", .label = "b"});
  const auto ids = attribute_values(page, "id");
  const std::set<std::string> known(ids.begin(), ids.end());
  CHECK(ids.size() > 20);
  CHECK(known.size() == ids.size());
  const auto references = attribute_values(page, "xlink:href");
  CHECK(references.size() > 5);
  for (const std::string& reference : references) {
    INFO(reference);
    CHECK(known.count(reference.substr(1)) == 1);
  }
  CHECK(page.find("http") == std::string::npos);
  CHECK(page.find("Gnuplot") == std::string::npos);
}
