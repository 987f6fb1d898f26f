// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "compare.hpp"
#include "qkflow/io/atomic_file.hpp"
#include "qkflow/report/gnuplot.hpp"
#include "qkflow/report/interrupt.hpp"
#include "qkflow/report/table.hpp"

namespace qkflow_program {

double CompareOptions::middle_ratio() const {
  return *std::min_element(ratios.begin(), ratios.end(),
                           [](double a, double b) { return std::abs(std::log(a)) < std::abs(std::log(b)); });
}

std::string CompareOptions::task_identity() const {
  return fmt::format(
      "qkflow {}, block task M {} b {} m {} n {} N {} scale {}, start {}, until loss {}, steps {}, step "
      "sizes {}{}",
      qkflow::version_text, task.classes, task.block, task.informative, task.noise, task.noise_vocabulary,
      task.score_scale, start, loss, steps, fmt::join(step_sizes, " "), quick ? ", quick" : "");
}

std::size_t Case::step_count(double h) const {
  return std::max<std::size_t>(1, static_cast<std::size_t>(std::ceil(end / h - 1e-9)));
}

namespace {

// The largest sharpness along the flow, from states of the line that the closed form names: no integration.
double stable_step_of(const Case& c, double final_loss) {
  const CompareModel model = c.model();
  const double first = c.closed.trajectory({0.0}).front().loss;
  double largest = model.sharpness(model.on_line(c.start));
  constexpr int points = 16;
  for (int i = 1; i < points; ++i) {
    const double share = static_cast<double>(i) / (points - 1);
    const auto point = c.closed.at_loss(first * std::pow(final_loss / first, share));
    largest = std::max(largest, model.sharpness(model.on_line({point.mu_ov, point.mu_qk})));
    qkflow::throw_if_interrupted();
  }
  return 2 / largest;
}

}  // namespace

Case make_case(const CompareOptions& options, const std::string& parameterization, double ratio) {
  // Several pieces ask for the same case; each answer is the same, whoever computes it first.
  static std::mutex mutex;
  static std::map<std::string, double> known;
  Case c{parameterization, ratio, options.task, options.start_of(parameterization), {}};
  c.closed = closed_form(parameterization, c.task, c.rates(), c.start);
  const std::string key = fmt::format("{} {} {}", parameterization, ratio, options.task_identity());
  {
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(key); found != known.end()) c.stable_step = found->second;
  }
  if (c.stable_step == 0) {
    c.stable_step = stable_step_of(c, options.loss);
    const std::lock_guard lock(mutex);
    known[key] = c.stable_step;
  }
  c.steps = options.step_sizes;
  if (c.steps.empty()) {
    // A power of two, so that halvings and times are exact numbers.
    double h = std::exp2(std::floor(std::log2(c.stable_step / 32)));
    for (int i = 0; i < (options.quick ? 4 : 6); ++i, h /= 2) c.steps.push_back(h);
  }
  c.end = options.steps > 0 ? options.steps * c.steps.front() : c.closed.time(c.closed.at_loss(options.loss));
  return c;
}

std::vector<double> log_spaced(double from, double to, int count) {
  std::vector<double> values;
  for (int i = 0; i < count; ++i) values.push_back(from * std::pow(to / from, static_cast<double>(i) / (count - 1)));
  values.back() = to;
  return values;
}

std::vector<std::size_t> log_steps(std::size_t last, int count) {
  std::vector<std::size_t> steps;
  for (const double value : log_spaced(1, static_cast<double>(last), count)) {
    const auto step = std::min(last, static_cast<std::size_t>(std::llround(value)));
    if (steps.empty() || step > steps.back()) steps.push_back(step);
  }
  return steps;
}

std::string number_text(double value, int digits) {
  if (std::isnan(value)) return "–";
  if (std::isinf(value)) return value > 0 ? "∞" : "−∞";
  if (value == 0) return "0";
  const double size = std::abs(value);
  std::string text;
  if (size >= 1e-3 && size < 1e5) {
    const int before = std::max(0, static_cast<int>(std::floor(std::log10(size))) + 1);
    text = fmt::format("{:.{}f}", size,
                       std::max(0, digits - (size < 1 ? static_cast<int>(std::ceil(std::log10(size))) : before)));
  } else {
    const std::string scientific = fmt::format("{:.{}e}", size, digits - 1);
    const std::size_t e = scientific.find('e');
    text = scientific.substr(0, e) + "·10";
    for (const char letter : std::to_string(std::stoi(scientific.substr(e + 1)))) {
      static constexpr std::array<const char*, 10> raised{"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
      text += letter == '-' ? "⁻" : raised[static_cast<std::size_t>(letter - '0')];
    }
  }
  return (value < 0 ? "−" : "") + text;
}

std::string slope_text(const qkflow::OrderStudy& study) {
  if (!std::isfinite(study.slope)) return "–";
  if (!std::isfinite(study.half_width)) return fmt::format("{:.3f}", study.slope);
  return fmt::format("{:.3f} ± {:.3f}", study.slope, study.half_width);
}

namespace {

// Running text without its marks, for the terminal.
std::string plain(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    const bool brace = (letter == '_' || letter == '^') && i + 1 < text.size() && text[i + 1] == '{';
    if (letter == '*' || letter == '`' || letter == '}') continue;
    result += letter;
    if (brace) ++i;
  }
  return result;
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (!stream.is_open() || stream.bad()) throw qkflow::IoError("cannot read '" + path.string() + "'");
  return text;
}

}  // namespace

Presentation::Presentation(const CompareOptions& options_, const Pieces& pieces_, const std::vector<Piece>& order,
                           qkflow::HtmlReport& report_)
    : options(options_), pieces(pieces_), report(report_), order_(order) {}

void Presentation::data(const std::string& name, const std::string& csv_text) {
  const std::filesystem::path path = std::filesystem::path(options.out) / (name + ".csv");
  qkflow::write_file(path, csv_text);
  files_.push_back(path.filename().string());
}

qkflow::CsvTable Presentation::joined(const std::string& name) {
  const std::string text = joined_text(pieces, order_, name + "_");
  data("compare_" + name, text);
  return qkflow::CsvTable::parse(text, name);
}

void Presentation::figure(qkflow::Figure figure, const std::string& label, const std::string& caption) {
  const std::filesystem::path out = options.out;
  figure.label_room_cm = 0.4;
  qkflow::Figure narrow = figure;
  narrow.name += "_narrow";
  narrow.columns = 1;
  narrow.width_cm = 8.6;
  narrow.panel_height_cm = 4.4;
  narrow.font_points = 7.5;
  for (std::size_t at = narrow.note.find("; "); at != std::string::npos; at = narrow.note.find("; ")) {
    narrow.note.replace(at, 2, "\n");
  }
  if (narrow.legend == qkflow::Figure::Legend::above) narrow.legend = qkflow::Figure::Legend::last_cell;
  for (qkflow::Panel& panel : narrow.panels) {
    for (qkflow::Curve& curve : panel.curves) curve.data = "../" + curve.data;
  }
  try {
    const qkflow::FigureFiles files = qkflow::draw_figure(figure, out);
    const qkflow::FigureFiles small = qkflow::draw_figure(narrow, out / "compare_work");
    for (const auto& file : {files.svg, files.png, files.script}) files_.push_back(file.filename().string());
    std::string id = figure.name;
    std::replace(id.begin(), id.end(), '_', '-');
    report.figure({.id = "figure-" + id,
                   .svg = read_file(files.svg),
                   .narrow = read_file(small.svg),
                   .label = label,
                   .caption = caption + fmt::format(" Files: [{0}.svg]({0}.svg), [{0}.png]({0}.png), [{0}.gp]({0}.gp).",
                                                    figure.name)});
  } catch (const qkflow::IoError& error) {
    // Ctrl-C at a terminal reaches gnuplot, too, and makes it fail.
    if (qkflow::interrupted()) throw qkflow::Interrupted("interrupted; the same command goes on with what is there");
    if (failure_.empty()) failure_ = error.what();
    report.paragraph("(A figure is missing here: " + std::string(error.what()) + ")");
  }
}

void Presentation::table(const qkflow::HtmlTable& table, bool on_terminal) {
  report.table(table);
  if (!on_terminal) return;
  std::vector<qkflow::Table::Column> columns;
  for (const auto& column : table.columns) {
    columns.push_back({plain(column.name), column.number ? qkflow::Table::Align::right : qkflow::Table::Align::left});
  }
  qkflow::Table text(columns);
  for (const auto& row : table.rows) {
    std::vector<std::string> cells;
    for (const std::string& cell : row) cells.push_back(plain(cell));
    text.row(cells);
  }
  // The first sentence will do there.
  terminal_ += plain(table.caption.substr(0, table.caption.find(". "))) + "\n\n" + text.text() + "\n";
}

void Presentation::finding(const std::string& text) {
  report.finding(text);
  findings_.push_back(text);
  terminal_ += plain(text) + "\n\n";
}

}  // namespace qkflow_program
