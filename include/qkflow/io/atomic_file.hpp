// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "qkflow/version.hpp"

namespace qkflow {

/// Thrown when a file cannot be read or written: the message names the file and the system's reason.
class IoError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {
[[noreturn]] inline void throw_io(const std::string& what, const std::string& name, int error) {
  throw IoError("cannot " + what + " " + name + ": " + std::generic_category().message(error));
}
}  // namespace detail

/// A text file that appears whole or not at all.
///
/// Text goes to a temporary file beside the target (`.name.<pid>-<n>.tmp`); `commit()` flushes it to the disk and
/// renames it over the target, so that a reader, or a run killed half-way, sees the old file or the new one and never a
/// part. A file destroyed without `commit()` removes its temporary and leaves the target as it was.
///
/// The target "-" is standard output. Neither it nor a target that is no regular file (a device, a pipe) can be renamed
/// over: both are written as text arrives. A symbolic link is followed, and an existing file's permissions are kept.
///
/// Errors: every member throws `IoError`; the destructor never does.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target) : target_(std::move(target)) {
    namespace fs = std::filesystem;
    if (target_ == "-") {
      descriptor_ = STDOUT_FILENO;
      return;
    }
    std::error_code ignored;
    if (fs::is_symlink(target_, ignored)) {
      const fs::path followed = fs::weakly_canonical(target_, ignored);
      if (!followed.empty()) target_ = followed;
    }
    struct stat existing {};
    const bool exists = ::stat(target_.c_str(), &existing) == 0;
    if (exists && S_ISDIR(existing.st_mode)) detail::throw_io("write", name(), EISDIR);
    if (exists && !S_ISREG(existing.st_mode)) {
      descriptor_ = ::open(target_.c_str(), O_WRONLY | O_CLOEXEC);
      if (descriptor_ < 0) detail::throw_io("write", name(), errno);
      return;
    }
    if (target_.filename().empty()) detail::throw_io("write", name(), EISDIR);
    static std::atomic<unsigned> counter{0};
    // A leftover of a killed run with this very process id must not stop us: try the next number.
    for (int attempt = 0; attempt < 100 && descriptor_ < 0; ++attempt) {
      const std::string suffix = "." + std::to_string(::getpid()) + "-" + std::to_string(counter++) + ".tmp";
      temporary_ = target_.parent_path() / ("." + target_.filename().string() + suffix);
      descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (descriptor_ < 0 && errno != EEXIST) break;
    }
    if (descriptor_ < 0) {
      const int error = errno;
      temporary_.clear();
      detail::throw_io("write", name(), error);
    }
    if (exists) static_cast<void>(::fchmod(descriptor_, existing.st_mode & 07777));
  }

  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  ~AtomicFile() { abandon(); }

  /// The file that will appear, links followed.
  const std::filesystem::path& target() const { return target_; }

  /// What to call the target in a message: "standard output", or the path in quotes.
  std::string name() const { return target_ == "-" ? "standard output" : "'" + target_.string() + "'"; }

  /// Appends text, kept in memory until 64 KiB are there.
  void write(std::string_view text) {
    buffer_.append(text);
    if (buffer_.size() >= 65536) flush();
  }

  /// Hands all text to the system. On standard output and devices the reader sees it now.
  void flush() {
    std::string_view rest = buffer_;
    while (!rest.empty()) {
      const ssize_t count = ::write(descriptor_, rest.data(), rest.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail(errno);
      rest.remove_prefix(static_cast<std::size_t>(count));
    }
    buffer_.clear();
  }

  /// Makes the text durable under the target's name. Nothing may be written afterwards.
  void commit() {
    flush();
    if (temporary_.empty()) return;
    if (::fsync(descriptor_) != 0) fail(errno);
    const int closed = ::close(std::exchange(descriptor_, -1));
    if (closed != 0) fail(errno);
    if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail(errno);
    temporary_.clear();
    // The name itself is durable only once its folder is; some file systems cannot, and the data are safe regardless.
    const std::filesystem::path folder = target_.has_parent_path() ? target_.parent_path() : ".";
    const int folder_descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_descriptor >= 0) {
      static_cast<void>(::fsync(folder_descriptor));
      ::close(folder_descriptor);
    }
  }

 private:
  [[noreturn]] void fail(int error) {
    buffer_.clear();
    abandon();
    detail::throw_io("write", name(), error);
  }

  void abandon() noexcept {
    if (descriptor_ >= 0 && descriptor_ != STDOUT_FILENO) ::close(descriptor_);
    descriptor_ = -1;
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
    temporary_.clear();
  }

  std::filesystem::path target_;
  std::filesystem::path temporary_;  // empty: written in place
  std::string buffer_;
  int descriptor_ = -1;
};

/// Writes a whole file at once: `AtomicFile` opened, written and committed.
inline void write_file(const std::filesystem::path& target, std::string_view text) {
  AtomicFile file(target);
  file.write(text);
  file.commit();
}

}  // namespace qkflow
