// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "qkflow/math/require.hpp"

namespace qkflow {

/// One axis of a panel. Labels take gnuplot's enhanced text: `{/:Italic x}`, `x_{sub}`, `10^{3}`, and UTF-8 letters.
/// Beside braces write no-break spaces: some SVG viewers drop plain ones there.
struct Axis {
  std::string label = {};                     ///< name, with the unit in brackets where there is one
  bool logarithmic = false;                   ///< decades, labelled 10^k
  bool reversed = false;                      ///< large values left (or below)
  std::optional<double> low = {}, high = {};  ///< range; left out: from the data
  std::optional<double> step = {};  ///< distance (on a logarithmic axis, factor) of the tics; left out: automatic
};

/// One curve: two columns of a CSV file in the figure's folder.
struct Curve {
  enum class Mark {
    line,
    points,
    line_and_points,
    bars,  ///< points with a bar from `low` to `high`
    band   ///< the area between `low` and `high`, pale
  };

  std::string data = {};       ///< the CSV file's name
  std::string x = {}, y = {};  ///< names of its columns
  std::string where = {};      ///< keeps the rows where this gnuplot condition holds (`where_equal`); empty: all
  std::string title = {};      ///< in the legend; the same title twice: one entry with both marks; empty: none
  std::size_t style = 0;       ///< which of `figure_styles` (colour, dash and point symbol go together)
  Mark mark = Mark::line;
  std::size_t every = 1;            ///< draws only each n-th row of the file
  std::string low = {}, high = {};  ///< columns of the ends of bars and bands
};

/// A set of axes with its curves.
struct Panel {
  std::string title = {};
  Axis x = {}, y = {};
  std::vector<Curve> curves = {};
};

/// A figure: panels in reading order on a grid, and one legend made of the first panel's curve titles.
struct Figure {
  enum class Legend { none, above, last_cell };

  std::string name = {};         ///< stem of all files: <name>.gp, <name>.svg, <name>.png
  std::string description = {};  ///< what it shows; a comment at the head of the script
  std::vector<Panel> panels = {};
  std::size_t columns = 2;
  double width_cm = 8.5;  ///< printed width; 8.5 is one column of a two-column page
  double panel_height_cm = 3.7;
  double label_room_cm = 0;  ///< more room left of each panel, where the numbers on y axes are long
  double font_points = 7;
  Legend legend = Legend::above;
  std::string note = {};  ///< a line under the legend
};

/// How a curve is drawn: told apart by colour, by dashes and by point symbol, so that grey print and any kind of colour
/// vision can follow. The colours are Okabe and Ito's for colour-blind readers, without their yellow (too pale for a
/// line).
struct FigureStyle {
  std::string_view colour, dash, point;
};

inline constexpr std::array<FigureStyle, 7> figure_styles{{{"#0072B2", "1", "7"},
                                                           {"#D55E00", "(8,2.5)", "5"},
                                                           {"#009E73", "(4,1.5,1,1.5)", "9"},
                                                           {"#CC79A7", "(2,1.2)", "11"},
                                                           {"#000000", "(8,1.5,1,1.5,1,1.5)", "13"},
                                                           {"#56B4E9", "(5,2)", "2"},
                                                           {"#E69F00", "(1,1)", "1"}}};

/// Text as a double-quoted gnuplot string.
inline std::string gnuplot_quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char letter : text) {
    if (letter == '\n') {
      quoted += "\\n";
      continue;
    }
    if (letter == '"' || letter == '\\') quoted += '\\';
    quoted += letter;
  }
  return quoted + "\"";
}

/// The condition "this column equals that number" for `Curve::where`.
inline std::string where_equal(std::string_view column, double value) {
  return fmt::format("column({}) == {:.17g}", gnuplot_quoted(column), value);
}

namespace detail {

/// Where one panel's axes lie, as fractions of the page.
struct PanelFrame {
  double left, right, bottom, top;
};

/// The grid in centimetres: room for labels around each panel's axes, a strip for the legend above all.
class FigureGrid {
 public:
  explicit FigureGrid(const Figure& figure)
      : columns_(figure.columns),
        width_(figure.width_cm),
        cell_height_(figure.panel_height_cm),
        unit_(figure.font_points / 7),
        left_(1.02 * unit_ + figure.label_room_cm),
        line_(0.42 * unit_),
        strip_(figure.legend == Figure::Legend::above ? (figure.note.empty() ? 1.2 : 2.1) * line_ : 0) {
    const std::size_t cells = figure.panels.size() + (figure.legend == Figure::Legend::last_cell ? 1 : 0);
    rows_ = (cells + columns_ - 1) / columns_;
  }

  double height() const { return cell_height_ * static_cast<double>(rows_) + strip_; }
  /// The height of a line of text, as a fraction of the page's.
  double line() const { return line_ / height(); }

  PanelFrame frame(std::size_t panel) const {
    const double cell_width = width_ / static_cast<double>(columns_);
    const double x = cell_width * static_cast<double>(panel % columns_);
    const std::size_t row = panel / columns_;
    const double y = cell_height_ * static_cast<double>(rows_ - 1 - row);
    return {(x + left_) / width_, (x + cell_width - 0.3 * unit_) / width_, (y + 1.0 * unit_) / height(),
            (y + cell_height_ - 0.42 * unit_) / height()};
  }

 private:
  std::size_t columns_;
  std::size_t rows_ = 0;
  double width_;
  double cell_height_;
  double unit_;  // all room for text grows with the font; 1 is 7 points
  double left_;
  double line_;
  double strip_;
};

inline std::string axis_commands(char name, const Axis& axis) {
  const auto bound = [](const std::optional<double>& value) { return value ? fmt::format("{:.17g}", *value) : "*"; };
  std::string script = fmt::format("  set {}label {}\n", name, gnuplot_quoted(axis.label));
  script += axis.logarithmic ? fmt::format("  set logscale {0} 10\n  set format {0} \"10^{{%T}}\"\n", name)
                             : fmt::format("  unset logscale {0}\n  set format {0} \"%g\"\n", name);
  // gnuplot heeds "reverse" only where it chooses the range itself.
  const bool swap = axis.reversed && axis.low && axis.high;
  script += fmt::format("  set {}range [{}:{}] {}\n", name, bound(swap ? axis.high : axis.low),
                        bound(swap ? axis.low : axis.high), axis.reversed && !swap ? "reverse" : "noreverse");
  script +=
      fmt::format("  set {}tics nomirror {}\n", name, axis.step ? fmt::format("{:.17g}", *axis.step) : "autofreq");
  return script;
}

inline std::string_view mark_words(Curve::Mark mark) {
  switch (mark) {
    case Curve::Mark::points:
    case Curve::Mark::bars:
      return "points";
    case Curve::Mark::line_and_points:
      return "linespoints pointnumber 8";
    default:
      return "lines";
  }
}

inline std::string curve_command(const Curve& curve) {
  const auto column = [&](const std::string& name) {
    const std::string value = fmt::format("column({})", gnuplot_quoted(name));
    return curve.where.empty() ? "(" + value + ")" : fmt::format("({} ? {} : NaN)", curve.where, value);
  };
  const std::string every = curve.every > 1 ? fmt::format(" every {}", curve.every) : "";
  const std::string data = gnuplot_quoted(curve.data) + every;
  if (curve.mark == Curve::Mark::bars) {
    return fmt::format("{} using {}:{}:{}:{} with yerrorbars linetype {} dashtype solid notitle", data, column(curve.x),
                       column(curve.y), column(curve.low), column(curve.high), curve.style + 1);
  }
  if (curve.mark == Curve::Mark::band) {
    return fmt::format(
        "{} using {}:{}:{} with filledcurves linetype {} fillstyle transparent solid 0.18 noborder notitle", data,
        column(curve.x), column(curve.low), column(curve.high), curve.style + 1);
  }
  return fmt::format("{} using {}:{} with {} linetype {} notitle", data, column(curve.x), column(curve.y),
                     mark_words(curve.mark), curve.style + 1);
}

/// The curves that give the legend its entries: the titled ones of the first panel, those of one title and style
/// merged.
inline std::vector<Curve> legend_entries(const Figure& figure) {
  std::vector<Curve> entries;
  for (const Curve& curve : figure.panels.front().curves) {
    if (curve.title.empty()) continue;
    const auto same = std::find_if(entries.begin(), entries.end(), [&](const Curve& entry) {
      return entry.title == curve.title && entry.style == curve.style;
    });
    if (same == entries.end()) {
      entries.push_back(curve);
    } else if (same->mark != curve.mark) {
      same->mark = Curve::Mark::line_and_points;
    }
  }
  return entries;
}

/// Empty plots that carry nothing but the key. Above the panels each entry is a key of its own, evenly spaced: gnuplot
/// would break a long row into two.
inline std::string legend_commands(const Figure& figure, const FigureGrid& grid) {
  const std::vector<Curve> entries = legend_entries(figure);
  if (figure.legend == Figure::Legend::none || entries.empty()) return {};
  const auto plot = [](const Curve& entry) {
    return fmt::format("NaN with {} linetype {} title {}", mark_words(entry.mark), entry.style + 1,
                       gnuplot_quoted(entry.title));
  };
  std::string script =
      "  # The legend\n"
      "  set lmargin at screen 0; set rmargin at screen 1; set bmargin at screen 0; set tmargin at screen 1\n"
      "  set title \"\"; unset border; unset tics; unset xlabel; unset ylabel; unset grid; unset logscale\n"
      "  set xrange [0:1] noreverse; set yrange [0:1] noreverse\n";
  const auto label = [&](double x, double y, const char* justification) {
    if (figure.note.empty()) return;
    script += fmt::format("  set label 1 {} at screen {:.4f}, screen {:.4f} {}\n", gnuplot_quoted(figure.note), x, y,
                          justification);
  };
  const double count = static_cast<double>(entries.size());
  if (figure.legend == Figure::Legend::above) {
    label(0.5, 1 - 1.6 * grid.line(), "center");
    for (std::size_t i = 0; i < entries.size(); ++i) {
      script += fmt::format(
          "  set key at screen {:.4f}, screen {:.4f} center center Left reverse samplen 1.6 width -1\n  plot {}\n",
          0.02 + 0.98 * (static_cast<double>(i) + 0.5) / count, 1 - 0.65 * grid.line(), plot(entries[i]));
      if (i == 0) script += "  unset label\n";  // drawn once is enough
    }
  } else {
    const PanelFrame cell = grid.frame(figure.panels.size());
    label(cell.left, cell.top - (count + 0.8) * grid.line(), "left");
    script += fmt::format(
        "  set key at screen {:.4f}, screen {:.4f} left top vertical Left reverse samplen 3 spacing key_spacing\n",
        cell.left, cell.top);
    std::string plots;
    for (const Curve& entry : entries) plots += (plots.empty() ? "" : ", \\\n    ") + plot(entry);
    script += "  plot " + plots + "\n";
  }
  return script + "  unset label\n";
}

}  // namespace detail

/// The figure as a gnuplot script that stands on its own beside its data: `gnuplot <name>.gp` in their folder draws
/// <name>.svg and <name>.png (300 dots an inch) again. Sizes, font and styles are set at its head, to be changed by
/// hand.
///
/// Errors: `InvalidArgument` for a figure without panels, without columns, without width, or with an unknown style.
inline std::string gnuplot_script(const Figure& figure) {
  if (figure.panels.empty()) throw_invalid("gnuplot_script", "number of panels", 0, "be at least 1");
  if (figure.columns == 0) throw_invalid("gnuplot_script", "columns", figure.columns, "be at least 1");
  require_positive("gnuplot_script", "width_cm", figure.width_cm);
  require_positive("gnuplot_script", "panel_height_cm", figure.panel_height_cm);
  require_positive("gnuplot_script", "font_points", figure.font_points);
  require_non_negative("gnuplot_script", "label_room_cm", figure.label_room_cm);
  const detail::FigureGrid grid(figure);

  std::string styles;
  for (std::size_t i = 0; i < figure_styles.size(); ++i) {
    const FigureStyle& style = figure_styles[i];
    styles += fmt::format(
        "set linetype {} linecolor rgb \"{}\" linewidth line_width dashtype {} pointtype {} pointsize 0.4\n", i + 1,
        style.colour, style.dash, style.point);
  }

  std::string body;
  for (std::size_t i = 0; i < figure.panels.size(); ++i) {
    const Panel& panel = figure.panels[i];
    const detail::PanelFrame frame = grid.frame(i);
    body += fmt::format("  # Panel {}\n", i + 1);
    body += fmt::format(
        "  set lmargin at screen {:.4f}; set rmargin at screen {:.4f}; set bmargin at screen {:.4f}; set tmargin at "
        "screen "
        "{:.4f}\n",
        frame.left, frame.right, frame.bottom, frame.top);
    body += fmt::format("  set title {}\n", gnuplot_quoted(panel.title));
    body += detail::axis_commands('x', panel.x) + detail::axis_commands('y', panel.y);
    std::string curves;
    for (const Curve& curve : panel.curves) {
      if (curve.style >= figure_styles.size()) {
        throw_invalid("gnuplot_script", "style", curve.style, "be below " + to_text(figure_styles.size()));
      }
      const bool spans = curve.mark == Curve::Mark::bars || curve.mark == Curve::Mark::band;
      if (spans && (curve.low.empty() || curve.high.empty())) {
        throw InvalidArgument("gnuplot_script: a curve with bars or a band must name its columns low and high");
      }
      curves += (curves.empty() ? " " : ", \\\n    ") + detail::curve_command(curve);
    }
    body += "  plot" + curves + "\n";
  }
  body += detail::legend_commands(figure, grid);

  std::string description = figure.description;
  std::replace(description.begin(), description.end(), '\n', ' ');  // it must stay one comment

  return fmt::format(R"(# {description}
# Made by qkflow {version}. To draw it again, in this folder: gnuplot {name}.gp
width_cm = {width:g}
height_cm = {height:g}
font_points = {points:g}
line_width = 1.3
if (!exists("output_name")) output_name = {quoted_name}

set encoding utf8
set datafile separator comma
set datafile columnheaders
set datafile missing NaN
# Colours for every kind of colour vision (Okabe and Ito); dashes and symbols differ, too.
{styles}
do for [form in "svg png"] {{
  # The two terminals differ in how large they take a line of text to be.
  if (form eq "svg") {{
    tic_shift = 0.35; x_shift = 1.0; y_shift = 0.9; title_shift = -0.8; key_spacing = 1.1
    set terminal svg size width_cm*96/2.54, height_cm*96/2.54 fixed enhanced \
        font sprintf("DejaVu Sans,Verdana,sans-serif,%g", font_points*96/72.0) linewidth 1 background "white"
  }} else {{
    tic_shift = 0.2; x_shift = 0.65; y_shift = 0.5; title_shift = -0.6; key_spacing = 1.4
    set terminal pngcairo size width_cm*300/2.54, height_cm*300/2.54 enhanced \
        font sprintf("DejaVu Sans,%g", font_points) fontscale 300/96.0 linewidth 300/96.0 pointscale 300/96.0 \
        background "white"
  }}
  set output output_name . "." . form
  set multiplot
  set border 3 linewidth 0.6
  set tics nomirror scale 0.5 offset 0,0
  set xtics offset 0,tic_shift; set ytics offset 0.5,0
  set grid linetype 1 linecolor rgb "#d8d8d8" linewidth 0.4 dashtype solid
  set title offset 0,title_shift
  set xlabel offset 0,x_shift; set ylabel offset y_shift,0
  unset key
{body}
  unset multiplot
  unset output
}}
)",
                     fmt::arg("description", description), fmt::arg("version", version_text),
                     fmt::arg("name", figure.name), fmt::arg("quoted_name", gnuplot_quoted(figure.name)),
                     fmt::arg("width", figure.width_cm), fmt::arg("height", grid.height()),
                     fmt::arg("points", figure.font_points), fmt::arg("styles", styles), fmt::arg("body", body));
}

}  // namespace qkflow
