// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "qkflow/io/atomic_file.hpp"
#include "qkflow/report/figure.hpp"

namespace qkflow {

/// The files of a drawn figure. The data are the caller's.
struct FigureFiles {
  std::filesystem::path script, svg, png;
};

namespace detail {

/// Where a program stands on PATH; empty if nowhere.
inline std::filesystem::path find_program(const std::string& program) {
  const char* variable = std::getenv("PATH");
  std::string_view folders = variable == nullptr ? "" : variable;
  while (!folders.empty()) {
    const std::size_t end = folders.find(':');
    std::filesystem::path candidate = std::filesystem::path(folders.substr(0, end)) / program;
    std::error_code ignored;
    if (::access(candidate.c_str(), X_OK) == 0 && std::filesystem::is_regular_file(candidate, ignored))
      return candidate;
    folders.remove_prefix(end == std::string_view::npos ? folders.size() : end + 1);
  }
  return {};
}

struct ProcessResult {
  int status = 0;      // exit status; 128 + signal if killed
  std::string output;  // standard output and error together
};

/// Runs a program in a folder, without a shell, and waits for it.
inline ProcessResult run_process(const std::vector<std::string>& words, const std::filesystem::path& folder) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_io("run", "'" + words.front() + "'", errno);
  const pid_t child = ::fork();
  if (child < 0) {
    const int error = errno;
    ::close(ends[0]);
    ::close(ends[1]);
    throw_io("run", "'" + words.front() + "'", error);
  }
  if (child == 0) {
    // Only async-signal-safe calls between fork and exec: other threads may have held locks.
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    if (::chdir(folder.c_str()) == 0) ::execv(arguments.front(), arguments.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  ProcessResult result;
  char buffer[4096];
  for (;;) {
    const ssize_t count = ::read(ends[0], buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    result.output.append(buffer, static_cast<std::size_t>(count));
  }
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

/// gnuplot's output as one line: its warnings and its error, without the echoed command and the caret under it.
inline std::string gnuplot_message(const std::string& output) {
  std::string message;
  std::string_view rest = output;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.find("warning:") == std::string_view::npos && line.find(" line ") == std::string_view::npos) continue;
    line.remove_prefix(line.find_first_not_of(" \t"));
    message += (message.empty() ? "" : "; ") + std::string(line);
  }
  return message.empty() ? "no message" : message;
}

}  // namespace detail

/// Writes the figure's script into `folder` (created if need be), beside the data the caller has put there, and lets
/// gnuplot draw the SVG and the PNG. Pictures appear whole or not at all.
///
/// Errors: `IoError` if gnuplot is not installed or fails. The script and the data are kept, and the message says
/// where.
inline FigureFiles draw_figure(const Figure& figure, const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw IoError("cannot create the folder '" + folder.string() + "': " + error.message());
  FigureFiles files{folder / (figure.name + ".gp"), folder / (figure.name + ".svg"), folder / (figure.name + ".png")};
  write_file(files.script, gnuplot_script(figure));

  const fs::path gnuplot = detail::find_program("gnuplot");
  const std::string kept = "; the data and the script '" + files.script.string() + "' are kept";
  if (gnuplot.empty()) {
    throw IoError("gnuplot is not installed (on Debian: apt-get install gnuplot-nox), so there is no picture" + kept);
  }
  const std::string temporary = "." + figure.name + "." + std::to_string(::getpid());
  const fs::path svg = folder / (temporary + ".svg");
  const fs::path png = folder / (temporary + ".png");
  // Set from the command line, the name wins over the script's own.
  const detail::ProcessResult result = detail::run_process(
      {gnuplot.string(), "-e", "output_name = " + gnuplot_quoted(temporary), files.script.filename().string()}, folder);
  if (result.status == 0) {
    fs::rename(svg, files.svg, error);
    if (!error) fs::rename(png, files.png, error);
  }
  if (result.status != 0 || error) {
    std::error_code ignored;
    fs::remove(svg, ignored);
    fs::remove(png, ignored);
    const std::string reason = result.status != 0 ? "failed (" + detail::gnuplot_message(result.output) + ")"
                                                  : "drew no picture (" + error.message() + ")";
    throw IoError("gnuplot " + reason + kept);
  }
  return files;
}

}  // namespace qkflow
