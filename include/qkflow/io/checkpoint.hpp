// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "qkflow/io/atomic_file.hpp"

namespace qkflow {

namespace detail {

/// FNV-1a, 64 bits: enough to tell a damaged file from a whole one.
inline std::uint64_t checksum(std::string_view bytes) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211ULL;
  return hash;
}

inline constexpr std::string_view checkpoint_magic = "qkflow checkpoint 1\n";

}  // namespace detail

/// Builds a checkpoint in memory: numbers little-endian, whatever the machine.
class CheckpointWriter {
 public:
  /// `identity` says what run this is; it has to match when the file is read.
  explicit CheckpointWriter(const std::string& identity) { text(identity); }

  void integer(std::uint64_t value) {
    for (int i = 0; i < 8; ++i) bytes_ += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  }
  void number(double value) { integer(std::bit_cast<std::uint64_t>(value)); }
  void number(float value) { integer(std::bit_cast<std::uint32_t>(value)); }
  void text(const std::string& value) {
    integer(value.size());
    bytes_ += value;
  }

  /// Writes the file whole or not at all. Throws IoError.
  void write(const std::filesystem::path& path) const {
    CheckpointWriter tail;
    tail.integer(detail::checksum(bytes_));
    write_file(path, std::string(detail::checkpoint_magic) + bytes_ + tail.bytes_);
  }

 private:
  CheckpointWriter() = default;
  std::string bytes_;
};

/// Reads a checkpoint back. Every error is an IoError that names the file and says whether it cannot be read, is no
/// checkpoint, is damaged, or belongs to another run.
class CheckpointReader {
 public:
  CheckpointReader(const std::filesystem::path& path, const std::string& identity) : name_("'" + path.string() + "'") {
    std::ifstream stream(path, std::ios::binary);
    if (!stream.is_open()) throw IoError("cannot read the checkpoint " + name_);
    bytes_.assign(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
    if (stream.bad()) throw IoError("cannot read the checkpoint " + name_);
    const std::string_view magic = detail::checkpoint_magic;
    if (std::string_view(bytes_).substr(0, magic.size()) != magic) throw IoError(name_ + " is no qkflow checkpoint");
    if (bytes_.size() < magic.size() + 8) damaged("it is cut off");
    at_ = bytes_.size() - 8;
    end_ = bytes_.size();
    const std::uint64_t expected = integer();
    at_ = magic.size();
    end_ = bytes_.size() - 8;
    if (detail::checksum(std::string_view(bytes_).substr(at_, end_ - at_)) != expected) {
      damaged("its checksum is wrong; it is cut off or was changed");
    }
    const std::string found = text();
    if (found != identity) {
      throw IoError("the checkpoint " + name_ + " belongs to another run: it is of \"" + found + "\", this run is \"" +
                    identity + "\"");
    }
  }

  std::uint64_t integer() {
    if (end_ - at_ < 8) damaged("it ends too early");
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) {
      value |= std::uint64_t{static_cast<unsigned char>(bytes_[at_ + static_cast<std::size_t>(i)])} << (8 * i);
    }
    at_ += 8;
    return value;
  }
  void number(double& value) { value = std::bit_cast<double>(integer()); }
  void number(float& value) { value = std::bit_cast<float>(static_cast<std::uint32_t>(integer())); }
  std::string text() {
    const std::uint64_t size = integer();
    if (size > end_ - at_) damaged("it ends too early");
    std::string value = bytes_.substr(at_, size);
    at_ += size;
    return value;
  }
  /// Call when everything has been read.
  void finish() const {
    if (at_ != end_) damaged("it holds more than expected");
  }
  [[noreturn]] void damaged(const std::string& why) const {
    throw IoError("the checkpoint " + name_ + " is damaged: " + why);
  }

 private:
  std::string name_, bytes_;
  std::size_t at_ = 0, end_ = 0;
};

}  // namespace qkflow
