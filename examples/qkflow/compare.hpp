// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "compare_model.hpp"
#include "compare_work.hpp"
#include "qkflow/compare/order_study.hpp"
#include "qkflow/report/figure.hpp"
#include "qkflow/report/html.hpp"
#include "qkflow/task/block_task.hpp"

namespace qkflow_program {

/// What `qkflow compare` is asked.
struct CompareOptions {
  std::vector<std::string> parameterizations{"CACO", "CAFO", "FACO", "FAFO"};
  std::vector<double> ratios{0.1, 1, 10};
  qkflow::BlockTask<double> task{.classes = 10, .block = 10, .informative = 3, .noise = 10};
  double start = 0.1;  ///< mu of a factorized circuit, for which 0 is a saddle; collapsed circuits start at 0
  double loss = 0.05;  ///< the flow is followed until it has this loss
  int steps = 0;       ///< if above 0, instead for so many of the largest steps
  std::vector<double>
      step_sizes{};  ///< of gradient descent, largest first; empty: fractions of the largest stable step
  int seed = 1, seeds = 24;
  std::vector<double> batches{2, 4, 8, 16, 32, 64};
  int length = 32, sequences = 256;  ///< topic task: L, and how many sequences the dataset has
  std::vector<std::string> only{};   ///< names of studies; empty: all
  int threads = 0;
  std::string out = "out";
  bool quick = false;
  std::string command{};  ///< as the user could type it again

  qkflow::ReducedState<double> start_of(const std::string& parameterization) const {
    return {parameterization.at(2) == 'F' ? start : 0.0, parameterization.at(0) == 'F' ? start : 0.0};
  }
  static qkflow::LearningRates<double> rates(double ratio) { return {.ov = 1, .qk = ratio}; }
  /// The ratio at which what is shown for one ratio is shown: the one nearest to 1.
  double middle_ratio() const;
  std::string task_identity() const;
};

/// One case of the block task: a parameterization and a ratio, with what gradient descent may dare there.
struct Case {
  std::string parameterization;
  double ratio;
  qkflow::BlockTask<double> task;
  qkflow::ReducedState<double> start;
  CompareClosedForm closed;
  double end = 0;               ///< the time to which the flow is followed
  double stable_step = 0;       ///< 2 / the largest sharpness along the flow until then
  std::vector<double> steps{};  ///< step sizes, largest first

  qkflow::LearningRates<double> rates() const { return CompareOptions::rates(ratio); }
  CompareModel model() const { return block_model(parameterization, task, rates()); }
  CompareLine line() const { return block_line(parameterization, task, rates(), start); }
  /// Steps of size h until the end; the last one falls on it or beyond.
  std::size_t step_count(double h) const;
};
Case make_case(const CompareOptions& options, const std::string& parameterization, double ratio);

/// Numbers from `from` to `to` in equal factors, both included.
std::vector<double> log_spaced(double from, double to, int count);
/// About `count` different step numbers from 1 to `last`, log-spaced, the last included.
std::vector<std::size_t> log_steps(std::size_t last, int count);
/// A number for people, some digits long: "0.0312", "3.12·10⁻⁵".
std::string number_text(double value, int digits = 3);
/// "1.02 ± 0.03"
std::string slope_text(const qkflow::OrderStudy& study);

/// What the studies write to.
class Presentation {
 public:
  Presentation(const CompareOptions& options, const Pieces& pieces, const std::vector<Piece>& order,
               qkflow::HtmlReport& report);

  const CompareOptions& options;
  const Pieces& pieces;
  qkflow::HtmlReport& report;

  /// Writes a CSV file of the out folder and names it. `name` without ending.
  void data(const std::string& name, const std::string& csv_text);
  /// The pieces whose names begin with `<name>_`, joined: data("compare_<name>").
  qkflow::CsvTable joined(const std::string& name);
  /// Draws a figure into the out folder, in a wide and a narrow form, and puts it into the report. A missing gnuplot is
  /// remembered, not thrown.
  void figure(qkflow::Figure figure, const std::string& label, const std::string& caption);
  /// The same table on the terminal and in the report.
  void table(const qkflow::HtmlTable& table, bool on_terminal = true);
  /// A line for the terminal and a sentence for the report.
  void finding(const std::string& text);

  const std::string& terminal() const { return terminal_; }
  const std::string& failure() const { return failure_; }
  const std::vector<std::string>& files() const { return files_; }
  const std::vector<std::string>& findings() const { return findings_; }

 private:
  const std::vector<Piece>& order_;
  std::string terminal_, failure_;
  std::vector<std::string> files_, findings_;
};

/// One part of the comparison: its pieces, and what is shown once they are there.
struct Study {
  std::string name;   ///< of --only, and what its pieces begin with
  std::string title;  ///< of its section
  std::vector<Piece> pieces{};
  std::function<void(Presentation&)> present{};
};
Study trajectories_study(const CompareOptions& options);
Study orders_study(const CompareOptions& options);
Study ratios_study(const CompareOptions& options);
Study batches_study(const CompareOptions& options);
Study stability_study(const CompareOptions& options);
Study optimizers_study(const CompareOptions& options);

}  // namespace qkflow_program
