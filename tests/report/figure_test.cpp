// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/report/figure.hpp"

#include <set>
#include <string>

#include "support/catch.hpp"
#include "support/comma_locale.hpp"

using namespace qkflow;

namespace {
Figure two_panels() {
  Figure figure{.name = "f", .description = "What it shows\nin two lines"};
  for (const char* y : {"a", "b"}) {
    Panel panel{
        .title = "(" + std::string(y) + ")", .x = {.label = "time [s]", .logarithmic = true}, .y = {.label = y}};
    panel.curves.push_back({.data = "f.csv", .x = "t", .y = y, .where = where_equal("r", 0.1), .title = "r = 0.1"});
    panel.curves.push_back({.data = "f.csv", .x = "t", .y = y, .style = 1, .mark = Curve::Mark::points});
    figure.panels.push_back(panel);
  }
  return figure;
}
}  // namespace

TEST_CASE("gnuplot_script names data, columns, axes and outputs") {
  const std::string script = gnuplot_script(two_panels());
  CHECK_THAT(script, StartsWith("# What it shows in two lines\n"));
  CHECK_THAT(script, Contains("gnuplot f.gp"));
  CHECK_THAT(script, Contains("\"f.csv\" using (column(\"r\") == 0.10000000000000001 ? column(\"t\") : NaN)"));
  CHECK_THAT(script, Contains("with points linetype 2"));
  CHECK_THAT(script, Contains("set xlabel \"time [s]\""));
  CHECK_THAT(script, Contains("set logscale x 10"));
  CHECK_THAT(script, Contains("title \"r = 0.1\""));
  CHECK_THAT(script, Contains("set terminal svg") && Contains("set terminal pngcairo"));
}

TEST_CASE("gnuplot_script: a legend in the last cell makes room for it") {
  Figure figure = two_panels();
  figure.panels.push_back(figure.panels.front());
  figure.legend = Figure::Legend::last_cell;
  CHECK_THAT(gnuplot_script(figure), Contains("left top vertical"));
  figure.legend = Figure::Legend::none;
  CHECK_THAT(gnuplot_script(figure), !Contains("set key at"));
}

TEST_CASE("gnuplot_script: curves of one title share a legend entry that shows both marks") {
  Figure figure = two_panels();
  for (Panel& panel : figure.panels) {
    panel.curves[1].title = panel.curves[0].title;
    panel.curves[1].style = panel.curves[0].style;
    panel.curves[1].every = 5;
  }
  figure.note = "first line\nsecond";
  const std::string script = gnuplot_script(figure);
  CHECK_THAT(script, Contains("plot NaN with linespoints pointnumber 8 linetype 1 title \"r = 0.1\""));
  CHECK_THAT(script, !Contains("plot NaN with points"));
  CHECK_THAT(script, Contains("\"f.csv\" every 5 using"));
  CHECK_THAT(script, Contains("set label 1 \"first line\\nsecond\""));
}

TEST_CASE("gnuplot_script: bars and bands name the columns of their ends") {
  Figure figure = two_panels();
  figure.panels[0].curves[0].mark = Curve::Mark::bars;
  CHECK_THROWS_WITH(gnuplot_script(figure), Contains("low and high"));
  figure.panels[0].curves[0].low = "a_low";
  figure.panels[0].curves[0].high = "a_high";
  figure.panels[1].curves[0] = figure.panels[0].curves[0];
  figure.panels[1].curves[0].where = "";
  figure.panels[1].curves[0].mark = Curve::Mark::band;
  const std::string script = gnuplot_script(figure);
  CHECK_THAT(script, Contains("(column(\"r\") == 0.10000000000000001 ? column(\"a_high\") : NaN) with yerrorbars"));
  CHECK_THAT(script, Contains("using (column(\"t\")):(column(\"a_low\")):(column(\"a_high\")) with filledcurves"));
  CHECK_THAT(script, Contains("plot NaN with points linetype 1 title \"r = 0.1\""));
}

TEST_CASE("gnuplot_script: numbers keep their points under a locale with decimal commas") {
  const std::string plain = gnuplot_script(two_panels());
  const qkflow_test::CommaLocale comma;
  CHECK(gnuplot_script(two_panels()) == plain);
}

TEST_CASE("figure styles differ in colour, dash and symbol at once") {
  std::set<std::string_view> colours;
  std::set<std::string_view> dashes;
  std::set<std::string_view> points;
  for (const FigureStyle& style : figure_styles) {
    colours.insert(style.colour);
    dashes.insert(style.dash);
    points.insert(style.point);
  }
  CHECK(colours.size() == figure_styles.size());
  CHECK(dashes.size() == figure_styles.size());
  CHECK(points.size() == figure_styles.size());
}

TEST_CASE("gnuplot_quoted escapes what would end the string") {
  CHECK(gnuplot_quoted("a\"b\\c\nd") == "\"a\\\"b\\\\c\\nd\"");
}

TEST_CASE("gnuplot_script refuses what cannot be drawn") {
  CHECK_THROWS_WITH(gnuplot_script(Figure{.name = "f"}), Contains("number of panels = 0"));
  Figure figure = two_panels();
  figure.columns = 0;
  CHECK_THROWS_WITH(gnuplot_script(figure), Contains("columns = 0"));
  figure = two_panels();
  figure.width_cm = -1;
  CHECK_THROWS_WITH(gnuplot_script(figure), Contains("width_cm = -1"));
  figure = two_panels();
  figure.panels[0].curves[0].style = figure_styles.size();
  CHECK_THROWS_WITH(gnuplot_script(figure), Contains("style = 7"));
}
