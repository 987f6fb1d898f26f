// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "support/temporary_folder.hpp"

// Set by tests/program/program.cmake. Without the program these tests compile, and ctest has them disabled.
#ifndef QKFLOW_PROGRAM
#define QKFLOW_PROGRAM "/qkflow-is-not-built"
#endif

namespace qkflow_test {

/// What a finished run of the program left: exit status (128 + signal if killed) and the two streams.
struct ProgramResult {
  int status = 0;
  std::string out, err;
};

/// The qkflow program running in a folder, with arguments passed as they are (no shell) and some environment variables.
class RunningProgram {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;

  explicit RunningProgram(const std::vector<std::string>& arguments, const std::filesystem::path& folder = ".",
                          const Environment& environment = {}) {
    std::string program = QKFLOW_PROGRAM;
    std::vector<std::string> words = arguments;
    std::vector<char*> argv{program.data()};
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const std::filesystem::path out = streams_ / "out";
    const std::filesystem::path err = streams_ / "err";
    pid_ = ::fork();
    if (pid_ == 0) {
      redirect(out.c_str(), STDOUT_FILENO);
      redirect(err.c_str(), STDERR_FILENO);
      for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
      if (::chdir(folder.c_str()) == 0) ::execv(program.c_str(), argv.data());
      ::_exit(127);
    }
  }
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;
  ~RunningProgram() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  void signal(int number) const { ::kill(pid_, number); }

  ProgramResult wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_text(streams_ / "out"),
            read_text(streams_ / "err")};
  }

 private:
  static void redirect(const char* path, int descriptor) {
    const int file = ::open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(file, descriptor);
    ::close(file);
  }

  TemporaryFolder streams_;
  pid_t pid_ = 0;
};

inline ProgramResult run_program(const std::vector<std::string>& arguments, const std::filesystem::path& folder = ".",
                                 const RunningProgram::Environment& environment = {}) {
  return RunningProgram(arguments, folder, environment).wait();
}

/// Words of a command line without quoting.
inline std::vector<std::string> words(const std::string& line) {
  std::vector<std::string> result;
  std::string word;
  for (const char letter : line + " ") {
    if (letter != ' ') {
      word += letter;
    } else if (!word.empty()) {
      result.push_back(std::exchange(word, ""));
    }
  }
  return result;
}

}  // namespace qkflow_test
