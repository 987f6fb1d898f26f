// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT

// attention_benchmark [--scalars=float,double] [--lengths=16,...] [--widths=16,...] [--threads=1,2]
// [--kernels=causal,single]
//                     [--passes=forward,backward] [--rounds=3] [--clock=real|cpu] [--picture=FOLDER]
//                     [Google Benchmark's own options]
//
// Every attention kernel beside its peers on the same problem: checked against each other first, then timed in turn,
// round after round. Ends with a table in Markdown: medians, spread, how far the peers are behind, and the share of the
// roof. With --picture, draws the rows of the first scalar and number of threads under their roofs.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>

#include "attention_roof.hpp"
#include "peers/attention_peer.hpp"
#include "qkflow/io/atomic_file.hpp"
#include "qkflow/report/csv.hpp"
#include "qkflow/report/figure.hpp"
#include "qkflow/report/gnuplot.hpp"

namespace qkflow_benchmark {

double Problem::scale() const { return 1.0 / std::sqrt(static_cast<double>(width)); }

double Problem::flops(bool backward) const {
  const double l = static_cast<double>(length), pairs = causal ? l * (l + 1) / 2 : l;
  return static_cast<double>(all_heads()) * pairs * static_cast<double>(width) * (backward ? 10 : 4);
}

double Problem::bytes(bool backward, std::size_t scalar) const {
  const double keys = 2 * static_cast<double>(length * width), rows = 2 * static_cast<double>(queries() * width);
  return static_cast<double>(all_heads()) * (keys + rows) * static_cast<double>(scalar) * (backward ? 2 : 1);
}

namespace {

template <class T>
struct Named {
  const char* name;
  MakePeer<T> make;
};

template <class T>
std::vector<Named<T>> all_peers() {
  return {
    {"qkflow", make_qkflow<T>}, {"Eigen", make_eigen<T>},
#if defined(QKFLOW_BENCHMARK_OPENBLAS)
        {"OpenBLAS", make_openblas<T>},
#endif
#if defined(QKFLOW_BENCHMARK_TORCH)
        {"libtorch", make_torch<T>},
#endif
#if defined(QKFLOW_BENCHMARK_ONEDNN)
        {"oneDNN", make_onednn<T>},
#endif
  };
}

/// Everything the table needs to know of one kernel on one problem.
struct Row {
  Problem problem;
  bool backward;
  std::size_t scalar;
  int threads;
  std::map<std::string, std::vector<double>> seconds;
};

std::map<std::string, std::size_t> row_of_name;
std::vector<Row> rows;

std::string name_of(const Problem& p, bool backward, const char* scalar, int threads) {
  std::ostringstream name;
  name << (p.causal ? "causal" : "single") << '/' << (backward ? "backward" : "forward") << '/' << scalar
       << "/length:" << p.length << "/width:" << p.width << "/heads:" << p.all_heads() << "/threads:" << threads;
  return name.str();
}

template <class T>
struct Prepared {
  std::string key;
  Operands<T> operands;
  std::vector<T> out;
  Gradients<T> gradients;
};

template <class T>
Operands<T> make_operands(const Problem& p) {
  std::mt19937_64 bits(1);
  const auto fill = [&](Index count) {
    std::vector<T> x(static_cast<std::size_t>(p.all_heads() * count * p.width));
    for (T& value : x) value = static_cast<T>(static_cast<double>(bits() >> 11) * 0x1p-51 - 2);
    return x;
  };
  return {p, fill(p.queries()), fill(p.length), fill(p.length), fill(p.queries())};
}

/// The last problem's operands and qkflow's answers, kept for all peers and rounds of it.
template <class T>
const Prepared<T>& prepare(const Problem& p) {
  static Prepared<T> last;
  const std::string key = name_of(p, false, "", 0);
  if (last.key != key) {
    last = {};
    last.key = key;
    last.operands = make_operands<T>(p);
    const auto kernels = make_qkflow<T>(last.operands, 1);
    kernels->forward();
    kernels->backward();
    last.out = kernels->out();
    last.gradients = kernels->gradients();
  }
  return last;
}

template <class T>
double difference(const std::vector<T>& x, const std::vector<T>& y) {
  double worst = x.size() == y.size() ? 0 : 1e300, size = 1e-30;
  for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
    size = std::max(size, std::abs(static_cast<double>(x[i])));
    if (std::isnan(x[i]) != std::isnan(y[i])) worst = 1e300;
  }
  return worst / size;
}

/// Largest difference between a peer's results and qkflow's, relative to the largest number of each.
template <class T>
double disagreement(const Prepared<T>& x, Peer<T>& peer, bool backward) {
  double worst = difference(x.out, peer.out());
  if (backward) {
    const Gradients<T> g = peer.gradients();
    worst = std::max({worst, difference(x.gradients.d_q, g.d_q), difference(x.gradients.d_k, g.d_k),
                      difference(x.gradients.d_v, g.d_v)});
  }
  return worst;
}

template <class T>
void run(benchmark::State& state, const Problem& problem, bool backward, int threads, Named<T> named) {
  const Prepared<T>& x = prepare<T>(problem);
  const auto peer = named.make(x.operands, threads);
  if (peer == nullptr) return state.SkipWithError("not offered");
  peer->forward();
  if (backward) peer->backward();
  static std::set<std::string> checked;
  if (checked.insert(std::string(named.name) + name_of(problem, backward, typeid(T).name(), threads)).second) {
    const double allowed = 400 * static_cast<double>(std::numeric_limits<T>::epsilon());
    const double found = disagreement(x, *peer, backward);
    if (!(found < allowed)) {
      return state.SkipWithError(
          ("results differ by " + std::to_string(found / allowed) + " times what is allowed").c_str());
    }
  }
  for (auto _ : state) {
    backward ? peer->backward() : peer->forward();
    benchmark::ClobberMemory();
  }
  state.counters["flops"] = benchmark::Counter(problem.flops(backward), benchmark::Counter::kIsIterationInvariantRate);
  state.counters["bytes"] =
      benchmark::Counter(problem.bytes(backward, sizeof(T)), benchmark::Counter::kIsIterationInvariantRate);
}

struct Options {
  std::vector<std::string> scalars{"float"}, kernels{"causal", "single"}, passes{"forward", "backward"};
  std::vector<long> lengths{16, 64, 256, 1024, 4096, 16384}, widths{16, 32, 64, 128}, threads{1};
  int rounds = 3;
  bool cpu_clock = false;
  std::string picture;

  bool take(const std::string& argument) {
    const auto equal = argument.find('=');
    const std::string name = argument.substr(0, equal),
                      value = equal == std::string::npos ? "" : argument.substr(equal + 1);
    if (name == "--scalars") return scalars = split(value), true;
    if (name == "--kernels") return kernels = split(value), true;
    if (name == "--passes") return passes = split(value), true;
    if (name == "--lengths") return lengths = numbers(value), true;
    if (name == "--widths") return widths = numbers(value), true;
    if (name == "--threads") return threads = numbers(value), true;
    if (name == "--rounds") return rounds = std::stoi(value), true;
    if (name == "--picture") return picture = value, true;
    if (name == "--clock") return cpu_clock = value == "cpu", true;
    return false;
  }
  static std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
    return parts;
  }
  static std::vector<long> numbers(const std::string& text) {
    std::vector<long> values;
    for (const auto& part : split(text)) values.push_back(std::stol(part));
    return values;
  }
};

/// Enough heads to make a batch of it, few enough that the whole-matrix peers fit into memory. Single queries get as
/// many heads as push long sequences out of every cache.
Problem problem_of(bool causal, long length, long width) {
  const long heads = causal ? std::max(1L, std::min(8L, 4096 / length)) : 8;
  return {causal, 1, heads, length, width};
}

template <class T>
void register_all(const Options& options, const char* scalar) {
  for (const auto& kernel : options.kernels) {
    for (const auto& pass : options.passes) {
      for (const long threads : options.threads) {
        for (const long width : options.widths) {
          for (const long length : options.lengths) {
            const Problem problem = problem_of(kernel == "causal", length, width);
            const bool backward = pass == "backward";
            const std::string name = name_of(problem, backward, scalar, static_cast<int>(threads));
            row_of_name[name] = rows.size();
            rows.push_back({problem, backward, sizeof(T), static_cast<int>(threads), {}});
            for (int round = 0; round < options.rounds; ++round) {
              for (const Named<T> peer : all_peers<T>()) {
                auto* b =
                    benchmark::RegisterBenchmark((name + "/round:" + std::to_string(round) + "/" + peer.name).c_str(),
                                                 run<T>, problem, backward, static_cast<int>(threads), peer);
                if (!options.cpu_clock) b->UseRealTime();
                b->Unit(benchmark::kMicrosecond);
              }
            }
          }
        }
      }
    }
  }
}

class Reporter : public benchmark::ConsoleReporter {
 public:
  explicit Reporter(bool cpu_clock) : ConsoleReporter(OO_Tabular), cpu_clock_(cpu_clock) {}
  void ReportRuns(const std::vector<Run>& runs) override {
    ConsoleReporter::ReportRuns(runs);
    for (const Run& run : runs) {
      if (run.error_occurred || run.iterations == 0) continue;
      std::string name = run.run_name.function_name;
      const auto peer = name.rfind('/');
      const auto round = name.rfind('/', peer - 1);
      const auto row = row_of_name.find(name.substr(0, round));
      if (row == row_of_name.end()) continue;
      const double seconds =
          (cpu_clock_ ? run.cpu_accumulated_time : run.real_accumulated_time) / static_cast<double>(run.iterations);
      rows[row->second].seconds[name.substr(peer + 1)].push_back(seconds);
    }
  }

 private:
  bool cpu_clock_;
};

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return (x[(x.size() - 1) / 2] + x[x.size() / 2]) / 2;
}

std::string short_time(double seconds) {
  char text[32];
  const char* unit = seconds < 1e-3 ? "us" : seconds < 1 ? "ms" : "s";
  const double value = seconds * (seconds < 1e-3 ? 1e6 : seconds < 1 ? 1e3 : 1);
  std::snprintf(text, sizeof text, value < 10 ? "%.2f %s" : value < 100 ? "%.1f %s" : "%.0f %s", value, unit);
  return text;
}

/// What was measured of the machine: by scalar and threads, and by bytes and threads.
std::map<std::pair<std::size_t, int>, double> peaks;
std::map<std::pair<std::size_t, int>, double> bandwidths;

/// The roofline picture: speed over flops a byte, under the peak and under the bandwidths of the smallest and the
/// largest problem measured.
void draw_roofline(const std::filesystem::path& folder) {
  if (rows.empty() || bandwidths.empty()) return;
  const std::size_t scalar = rows.front().scalar;
  const int threads = rows.front().threads;
  const double peak = peaks[{scalar, threads}] * 1e-9;
  double near = 0, far = 0;
  for (const auto& [key, bandwidth] : bandwidths) {
    if (key.second != threads) continue;
    if (near == 0) near = bandwidth * 1e-9;
    far = bandwidth * 1e-9;
  }
  std::filesystem::create_directories(folder);
  double least = 1e300, most = 0;
  {
    qkflow::AtomicFile file(folder / "attention_roofline.csv");
    qkflow::CsvWriter csv(file, {"kind", "intensity", "gflops"});
    for (const Row& row : rows) {
      const auto own = row.seconds.find("qkflow");
      if (own == row.seconds.end() || row.scalar != scalar || row.threads != threads) continue;
      const double flops = row.problem.flops(row.backward), bytes = row.problem.bytes(row.backward, row.scalar);
      csv.row((row.problem.causal ? 0 : 2) + (row.backward ? 1 : 0), flops / bytes, flops / median(own->second) * 1e-9);
      least = std::min(least, flops / bytes / 2);
      most = std::max(most, flops / bytes * 2);
    }
    file.commit();
  }
  {
    qkflow::AtomicFile file(folder / "attention_roofline_roofs.csv");
    qkflow::CsvWriter csv(file, {"intensity", "near", "far"});
    for (int i = 0; i <= 200; ++i) {
      const double x = least * std::pow(most / least, i / 200.0);
      csv.row(x, std::min(peak, near * x), std::min(peak, far * x));
    }
    file.commit();
  }
  qkflow::Panel panel{.title = "",
                      .x = {.label = "operations per byte", .logarithmic = true, .low = least, .high = most},
                      .y = {.label = "GFLOP/s", .logarithmic = true, .low = 1, .high = peak * 2}};
  const std::string data = "attention_roofline.csv", roofs = "attention_roofline_roofs.csv";
  const char* kinds[] = {"causal, forward", "causal, backward", "single query, forward", "single query, backward"};
  for (std::size_t kind = 0; kind < 4; ++kind) {
    panel.curves.push_back({.data = data,
                            .x = "intensity",
                            .y = "gflops",
                            .where = qkflow::where_equal("kind", static_cast<double>(kind)),
                            .title = kinds[kind],
                            .style = kind,
                            .mark = qkflow::Curve::Mark::points});
  }
  panel.curves.push_back({.data = roofs, .x = "intensity", .y = "near", .title = "roof, nearest cache", .style = 4});
  panel.curves.push_back({.data = roofs, .x = "intensity", .y = "far", .title = "roof, memory", .style = 6});
  const qkflow::Figure figure{.name = "attention_roofline",
                              .description = "Attention kernels under the roofs of the machine",
                              .panels = {panel},
                              .columns = 2,
                              .width_cm = 17,
                              .panel_height_cm = 6,
                              .legend = qkflow::Figure::Legend::last_cell};
  const qkflow::FigureFiles files = qkflow::draw_figure(figure, folder);
  std::printf("\nRoofline: %s\n", files.script.string().c_str());
}

void print_table() {
  std::vector<std::string> names;
  for (const auto& peer : all_peers<float>()) names.push_back(peer.name);
  std::printf("\nInstruction set of qkflow: %s\n\n", qkflow::simd::instruction_set());
  std::printf(
      "| kernel | pass | scalar | threads | width | length | heads | qkflow | spread | GFLOP/s | GB/s | roof | of roof "
      "|");
  for (std::size_t i = 1; i < names.size(); ++i) std::printf(" %s |", names[i].c_str());
  std::printf("\n|---|---|---|---|---|---|---|---|---|---|---|---|---|");
  for (std::size_t i = 1; i < names.size(); ++i) std::printf("---|");
  std::printf("\n");
  int ahead = 0, compared = 0;
  for (const Row& row : rows) {
    const auto own = row.seconds.find("qkflow");
    if (own == row.seconds.end()) continue;
    const double time = median(own->second);
    const auto [low, high] = std::minmax_element(own->second.begin(), own->second.end());
    auto& peak = peaks[{row.scalar, row.threads}];
    if (peak == 0) peak = row.scalar == 4 ? peak_flops<float>(row.threads) : peak_flops<double>(row.threads);
    const double bytes = row.problem.bytes(row.backward, row.scalar);
    // Read an array of that very size: the cache the problem fits into decides.
    const auto size = static_cast<std::size_t>(std::clamp(bytes, 16384.0, 268435456.0)) / 4096 * 4096;
    auto& bandwidth = bandwidths[{size, row.threads}];
    if (bandwidth == 0) bandwidth = read_bandwidth(size, row.threads);
    const double flops = row.problem.flops(row.backward), compute = flops / peak, memory = bytes / bandwidth;
    std::printf("| %s | %s | %s | %d | %ld | %ld | %ld | %s | %.0f %% | %.1f | %.1f | %s | %.0f %% |",
                row.problem.causal ? "causal" : "single query", row.backward ? "backward" : "forward",
                row.scalar == 4 ? "float" : "double", row.threads, static_cast<long>(row.problem.width),
                static_cast<long>(row.problem.length), static_cast<long>(row.problem.all_heads()),
                short_time(time).c_str(), 100 * (*high - *low) / time, flops / time * 1e-9, bytes / time * 1e-9,
                compute > memory ? "flops" : "bytes", 100 * std::max(compute, memory) / time);
    for (std::size_t i = 1; i < names.size(); ++i) {
      const auto other = row.seconds.find(names[i]);
      if (other == row.seconds.end()) {
        std::printf(" - |");
      } else {
        const double ratio = median(other->second) / time;
        std::printf(" %.2f |", ratio);
        ++compared;
        if (ratio > 1) ++ahead;
      }
    }
    std::printf("\n");
  }
  std::printf("\nPeers: their time divided by qkflow's; qkflow is ahead in %d of %d.\n\nRoofs measured:\n", ahead,
              compared);
  for (const auto& [key, peak] : peaks) {
    std::printf("- %s, %d thread(s): %.1f GFLOP/s\n", key.first == 4 ? "float" : "double", key.second, peak * 1e-9);
  }
  for (const auto& [key, bandwidth] : bandwidths) {
    std::printf("- reading %zu KiB, %d thread(s): %.1f GB/s\n", key.first / 1024, key.second, bandwidth * 1e-9);
  }
#if defined(QKFLOW_BENCHMARK_OPENBLAS)
  std::printf("- %s\n", describe_openblas().c_str());
#endif
#if defined(QKFLOW_BENCHMARK_TORCH)
  std::printf("- %s\n", describe_torch().c_str());
#endif
#if defined(QKFLOW_BENCHMARK_ONEDNN)
  std::printf("- %s\n", describe_onednn().c_str());
#endif
}

}  // namespace
}  // namespace qkflow_benchmark

int main(int argc, char** argv) {
  using namespace qkflow_benchmark;  // NOLINT(google-build-using-namespace)
  Options options;
  std::vector<char*> others{argv[0]};
  for (int i = 1; i < argc; ++i) {
    if (!options.take(argv[i])) others.push_back(argv[i]);
  }
  int count = static_cast<int>(others.size());
  benchmark::Initialize(&count, others.data());
  if (benchmark::ReportUnrecognizedArguments(count, others.data())) return 2;
  for (const auto& scalar : options.scalars) {
    if (scalar == "float") register_all<float>(options, "float");
    if (scalar == "double") register_all<double>(options, "double");
  }
  Reporter reporter(options.cpu_clock);
  benchmark::RunSpecifiedBenchmarks(&reporter);
  print_table();
  if (!options.picture.empty()) draw_roofline(options.picture);
  benchmark::Shutdown();
  return 0;
}
