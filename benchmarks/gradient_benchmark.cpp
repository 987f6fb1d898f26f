// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT

// gradient_benchmark [--case=FOLDER] [--peers=FOLDER] [--python=PROGRAM] [--json=FILE] [--seconds=1.5]
//                    [--scalars=float,double] [--threads=1,2]
//
// Loss and gradient of the published setting's block dataset (M = 20, b = 50, m = 5, n = 50: 50,000 sequences) at
// random weights: qkflow beside the roof of this machine and, with --peers and --case, beside the programs in that
// folder. These read the case from files written here, and refuse to be timed unless loss and gradient are qkflow's to
// rounding. Ends with a table in Markdown. benchmarks/run-gradient builds it and runs it all.

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attention_roof.hpp"
#include "qkflow/kernel/simd.hpp"
#include "qkflow/math/random.hpp"
#include "qkflow/model/circuit_gradient.hpp"
#include "qkflow/task/block_dataset.hpp"

namespace {

using namespace qkflow;
using qkflow_benchmark::now;

struct Options {
  std::string folder{}, peers{}, python = "/usr/bin/python3", json{}, scalars = "float,double", threads = "1,2";
  double seconds = 1.5;
};

/// One row of the table. Times in seconds.
struct Row {
  std::string name, scalar;
  int threads = 1;
  double median = 0, least = 0, most = 0, loss_error = 0, gradient_error = 0;
};

/// The least a pass can do and move, counted from its equations (model/detail/soft_pass.hpp), a sequence with m entries
/// and C classes at a time:
///     z = sum_i a_i v_i                       2 m C          G_OV[:, i] += a_i e          2 m C
///     c_i = e . v_i                           2 m C          z - z[label], sum of e^z     2 C
///     scores, softmax: 4 m                                   cbar, G_QK: 2 m + 4 m        weights, loss: 8
/// and m + C exponentials and a logarithm, each as many operations as Eigen's vectorized one has multiplications,
/// additions, comparisons and shifts: 30 in double, 26 in float.
template <class T>
double flops(const Dataset<double>& data) {
  const double classes = static_cast<double>(data.shape().classes), function = sizeof(T) == 8 ? 30 : 26;
  double sum = 0;
  for (std::size_t s = 0; s < data.size(); ++s) {
    const double entries = static_cast<double>(data[s].tokens.size());
    sum += 6 * entries * classes + 2 * classes + 10 * entries + 8 + function * (entries + classes + 1);
  }
  return sum;
}

/// Bytes between memory and processor if the circuits' working parts stay in its caches: the plan of a sequence and of
/// its entries, read once; every entry of W_QK that is met, once; W_OV and G_OV once; G_QK written, which reads its
/// lines first.
template <class T>
double bytes(const Dataset<double>& data) {
  std::set<std::pair<std::int32_t, std::int32_t>> met;
  for (std::size_t s = 0; s < data.size(); ++s) {
    for (const auto token : data[s].tokens) met.insert({data[s].query, token});
  }
  const auto& shape = data.shape();
  const double sequences = static_cast<double>(data.size()), entries = static_cast<double>(data.entry_count());
  const double circuits = static_cast<double>(met.size()) + 2 * static_cast<double>(shape.classes * shape.tokens) +
                          2 * static_cast<double>(shape.queries * shape.tokens);
  return sequences * sizeof(detail::PlannedSequence<T>) + entries * (2 * sizeof(std::int32_t) + sizeof(T)) +
         circuits * sizeof(T);
}

template <class T>
const char* scalar_name() {
  return sizeof(T) == 4 ? "float" : "double";
}

template <class Matrix>
double difference(const Matrix& found, const Matrix& right) {
  return (found - right).cwiseAbs().maxCoeff() / right.cwiseAbs().maxCoeff();
}

struct Case {
  Dataset<double> data = block_dataset(BlockTask<double>{});  // the published setting is the default
  Circuits<double> w{data.shape()}, g{data.shape()};
  double loss = 0;

  Case() {
    RandomStream random(1);
    for (Eigen::Index i = 0; i < w.qk.size(); ++i) w.qk.data()[i] = random.normal();
    for (Eigen::Index i = 0; i < w.ov.size(); ++i) w.ov.data()[i] = random.normal();
    // As floats, so that both scalars compute with the same weights.
    w.qk = w.qk.cast<float>().cast<double>();
    w.ov = w.ov.cast<float>().cast<double>();
    CircuitGradient<double> gradient(data);
    loss = gradient(w.view(), g.map());
  }

  /// As gradient_case.py reads it: numbers one after another, little-endian as every machine this runs on.
  void write(const std::string& folder) const {
    const auto file = [&folder](const char* name, const auto* from, std::size_t count) {
      std::ofstream out(folder + "/" + name, std::ios::binary);
      out.write(reinterpret_cast<const char*>(from), static_cast<std::streamsize>(count * sizeof(*from)));
      if (!out) throw std::runtime_error("cannot write " + folder + "/" + name);
    };
    std::vector<std::int32_t> query, label, token;
    std::vector<double> null_count;
    const std::size_t entries = data[0].tokens.size();
    for (std::size_t s = 0; s < data.size(); ++s) {
      const auto sequence = data[s];
      if (sequence.tokens.size() != entries) throw std::logic_error("the peers want sequences of one length");
      query.push_back(sequence.query);
      label.push_back(sequence.label);
      null_count.push_back(sequence.null_count);
      token.insert(token.end(), sequence.tokens.begin(), sequence.tokens.end());
    }
    const auto& shape = data.shape();
    const std::int64_t sizes[] = {static_cast<std::int64_t>(data.size()), static_cast<std::int64_t>(entries),
                                  shape.queries, shape.tokens, shape.classes};
    file("sizes.i64", sizes, std::size(sizes));
    file("query.i32", query.data(), query.size());
    file("label.i32", label.data(), label.size());
    file("token.i32", token.data(), token.size());
    file("null_count.f64", null_count.data(), null_count.size());
    file("w_qk.f64", w.qk.data(), static_cast<std::size_t>(w.qk.size()));
    file("w_ov.f64", w.ov.data(), static_cast<std::size_t>(w.ov.size()));
    file("loss.f64", &loss, 1);
    file("g_qk.f64", g.qk.data(), static_cast<std::size_t>(g.qk.size()));
    file("g_ov.f64", g.ov.data(), static_cast<std::size_t>(g.ov.size()));
  }
};

template <class T>
Row measure(const Case& c, int threads, double seconds) {
  Circuits<T> w(c.data.shape()), g(c.data.shape());
  w.qk = c.w.qk.cast<T>();
  w.ov = c.w.ov.cast<T>();
  CircuitGradient<T> gradient(c.data.cast<T>(), {}, threads);
  const T loss = gradient(w.view(), g.map());
  Row row{"qkflow", scalar_name<T>(), threads};
  row.loss_error = std::abs(static_cast<double>(loss) / c.loss - 1);
  row.gradient_error = std::max(difference<CircuitMatrix<double, Circuit::qk>>(g.qk.template cast<double>(), c.g.qk),
                                difference<CircuitMatrix<double, Circuit::ov>>(g.ov.template cast<double>(), c.g.ov));
  if (!(std::max(row.loss_error, row.gradient_error) < (sizeof(T) == 4 ? 2e-5 : 1e-12))) {
    throw std::runtime_error("float and double, or one and two threads, disagree");
  }
  std::vector<double> times;
  const double begin = now();
  while (now() - begin < seconds || times.size() < 5) {
    const double start = now();
    gradient(w.view(), g.map());
    times.push_back(now() - start);
  }
  std::sort(times.begin(), times.end());
  row.median = times[times.size() / 2];
  row.least = times.front();
  row.most = times.back();
  return row;
}

/// Runs one of the peers' programs; a row for every line it prints.
std::vector<Row> run_peer(const Options& options, const std::string& program, const char* scalar, int threads) {
  const std::string command = options.python + " '" + options.peers + "/" + program + "' '" + options.folder +
                              "' --scalar " + scalar + " --threads " + std::to_string(threads) + " --seconds " +
                              std::to_string(options.seconds);
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
  std::string text;
  char buffer[4096];
  for (std::size_t got = 0; (got = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, got);
  if (pclose(pipe) != 0) std::fprintf(stderr, "%s failed and is left out\n", command.c_str());
  std::vector<Row> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    Row row{line.substr(0, line.find('\t')), scalar, threads};
    if (std::sscanf(line.c_str() + row.name.size(), "%lf %lf %lf %lf %lf", &row.median, &row.least, &row.most,
                    &row.loss_error, &row.gradient_error) == 5) {
      rows.push_back(row);
    }
  }
  return rows;
}

struct Roof {
  double flops, bytes, peak, bandwidth;
  double arithmetic() const { return flops / peak; }
  double traffic() const { return bytes / bandwidth; }
};

template <class T>
Roof measure_roof(const Dataset<double>& data, int threads) {
  const double moved = bytes<T>(data);
  return {flops<T>(data), moved, qkflow_benchmark::peak_flops<T>(threads),
          qkflow_benchmark::read_bandwidth(static_cast<std::size_t>(moved), threads)};
}

template <class T>
void run(const Options& options, const Case& c, std::vector<Row>& rows, std::map<std::string, Roof>& roofs) {
  for (const int threads : {1, 2}) {
    if (options.threads.find(std::to_string(threads)) == std::string::npos) continue;
    const Roof roof = measure_roof<T>(c.data, threads);
    roofs.emplace(scalar_name<T>() + std::to_string(threads), roof);
    rows.push_back(measure<T>(c, threads, options.seconds));
    if (options.peers.empty()) continue;
    for (const char* program : {"gradient_numpy.py", "gradient_pytorch.py"}) {
      for (Row& row : run_peer(options, program, scalar_name<T>(), threads)) rows.push_back(std::move(row));
    }
  }
}

void print(const Case& c, const std::vector<Row>& rows, const std::map<std::string, Roof>& roofs) {
  const double sequences = static_cast<double>(c.data.size());
  std::printf(
      "\n| | scalar | threads | ms, median (least to most) | M sequences/s | times qkflow | of the roof | error |\n");
  std::printf("|---|---|---|---|---|---|---|---|\n");
  double own = 0;
  for (const Row& row : rows) {
    if (row.name == "qkflow") own = row.median;
    const Roof& roof = roofs.at(row.scalar + std::to_string(row.threads));
    std::printf(
        "| %s | %s | %d | %.2f (%.2f to %.2f) | %.2f | %.2f | %.1f %% | %.0e |\n", row.name.c_str(), row.scalar.c_str(),
        row.threads, 1e3 * row.median, 1e3 * row.least, 1e3 * row.most, 1e-6 * sequences / row.median, row.median / own,
        100 * std::max(roof.arithmetic(), roof.traffic()) / row.median, std::max(row.loss_error, row.gradient_error));
  }
  std::printf(
      "\nThe roof: counted operations over measured peak, counted bytes over measured bandwidth; the larger counts.\n");
  std::printf("Instruction set of qkflow: %s\n\n", simd::instruction_set());
  std::printf("| scalar, threads | operations a sequence | peak | ms | bytes a sequence | bandwidth | ms |\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  for (const auto& [name, roof] : roofs) {
    std::printf("| %s | %.0f | %.1f GFLOP/s | %.2f | %.0f | %.1f GB/s | %.2f |\n", name.c_str(), roof.flops / sequences,
                1e-9 * roof.peak, 1e3 * roof.arithmetic(), roof.bytes / sequences, 1e-9 * roof.bandwidth,
                1e3 * roof.traffic());
  }
}

void write_json(const std::string& name, const std::vector<Row>& rows, const std::map<std::string, Roof>& roofs) {
  std::ofstream out(name);
  out.precision(9);
  out << "{\n  \"instruction_set\": \"" << simd::instruction_set() << "\",\n  \"roofs\": [";
  const char* separator = "\n";
  for (const auto& [key, roof] : roofs) {
    out << separator << "    {\"name\": \"" << key << "\", \"flops\": " << roof.flops << ", \"bytes\": " << roof.bytes
        << ", \"peak_flops\": " << roof.peak << ", \"bandwidth\": " << roof.bandwidth << "}";
    separator = ",\n";
  }
  out << "\n  ],\n  \"measurements\": [";
  separator = "\n";
  for (const Row& row : rows) {
    out << separator << "    {\"name\": \"" << row.name << "\", \"scalar\": \"" << row.scalar
        << "\", \"threads\": " << row.threads << ", \"median_s\": " << row.median << ", \"least_s\": " << row.least
        << ", \"most_s\": " << row.most << ", \"loss_error\": " << row.loss_error
        << ", \"gradient_error\": " << row.gradient_error << "}";
    separator = ",\n";
  }
  out << "\n  ]\n}\n";
  if (!out) throw std::runtime_error("cannot write " + name);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i], name = argument.substr(0, argument.find('='));
    const std::string value = name.size() < argument.size() ? argument.substr(name.size() + 1) : "";
    if (name == "--case")
      options.folder = value;
    else if (name == "--peers")
      options.peers = value;
    else if (name == "--python")
      options.python = value;
    else if (name == "--json")
      options.json = value;
    else if (name == "--scalars")
      options.scalars = value;
    else if (name == "--threads")
      options.threads = value;
    else if (name == "--seconds")
      options.seconds = std::stod(value);
    else
      throw std::runtime_error("unknown option " + argument);
  }
  if (!options.peers.empty() && options.folder.empty()) throw std::runtime_error("--peers needs --case");
  return options;
}

}  // namespace

int main(int argc, char** argv) try {
  const Options options = parse(argc, argv);
  const Case c;
  if (!options.folder.empty()) c.write(options.folder);
  std::vector<Row> rows;
  std::map<std::string, Roof> roofs;
  if (options.scalars.find("double") != std::string::npos) run<double>(options, c, rows, roofs);
  if (options.scalars.find("float") != std::string::npos) run<float>(options, c, rows, roofs);
  print(c, rows, roofs);
  if (!options.json.empty()) write_json(options.json, rows, roofs);
} catch (const std::exception& error) {
  std::fprintf(stderr, "gradient_benchmark: %s\n", error.what());
  return 1;
}
