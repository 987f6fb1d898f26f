// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT

// Documentation shows only code that is compiled and output that was printed. A fenced block says where it comes from
// in an HTML comment on the line before it:
//
//   <!-- file: examples/first_steps.cpp -->           the whole file, without its SPDX lines
//   <!-- file: examples/first_steps.cpp#solve -->     what stands between the lines `// [solve]` and `// [/solve]`
//                                                     (`# [solve]` in CMake)
//   <!-- output: qkflow flow --help -->               what build/.../examples/qkflow prints; a line `...` in the block
//                                                     stands for any number of lines
//
// A block of C++ or CMake without such a line is an error, and so are a relative link to a file that is not there, a
// header named in backticks that does not exist, and a source key that the bibliography lacks.

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"

namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

Lines split(const std::string& text) {
  Lines lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

Lines read_lines(const fs::path& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return split({std::istreambuf_iterator<char>(in), {}});
}

std::string join(const Lines& lines) {
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  return text;
}

struct Block {
  std::size_t line = 0;  // of the opening fence, from 1
  std::string language;
  std::string source;  // "file: ..." or "output: ...", empty where the block names none
  Lines content;
};

std::vector<Block> blocks_of(const Lines& lines) {
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (!lines[i].starts_with("```")) continue;
    Block block{i + 1, lines[i].substr(3), {}, {}};
    if (i > 0 && lines[i - 1].starts_with("<!-- ") && lines[i - 1].ends_with(" -->")) {
      block.source = lines[i - 1].substr(5, lines[i - 1].size() - 9);
    }
    for (++i; i < lines.size() && !lines[i].starts_with("```"); ++i) block.content.push_back(lines[i]);
    blocks.push_back(std::move(block));
  }
  return blocks;
}

/// What a block from `file` or `file#region` must show; nothing where the region is not there.
std::optional<Lines> excerpt(const Lines& file, const std::string& region) {
  auto first = file.begin();
  auto last = file.end();
  if (region.empty()) {
    while (first != last && (first->starts_with("// SPDX-") || first->empty())) ++first;
    return Lines(first, last);
  }
  const auto find_mark = [&](const std::string& mark) {
    return std::find_if(first, last, [&](const std::string& line) {
      const std::string text = line.substr(std::min(line.find_first_not_of(' '), line.size()));
      return text == "// " + mark || text == "# " + mark;
    });
  };
  first = find_mark("[" + region + "]");
  last = find_mark("[/" + region + "]");
  if (last == file.end()) return std::nullopt;
  Lines shown(first + 1, last);
  std::size_t indent = std::string::npos;
  for (const auto& line : shown) indent = std::min(indent, line.find_first_not_of(' '));
  for (auto& line : shown) line.erase(0, std::min(indent, line.size()));
  return shown;
}

/// Whether `printed` is what `shown` says, a line `...` standing for any number of lines.
bool matches(const Lines& shown, const Lines& printed, std::size_t s = 0, std::size_t p = 0) {
  if (s == shown.size()) return p == printed.size();
  if (shown[s] == "...") {
    for (std::size_t next = p; next <= printed.size(); ++next) {
      if (matches(shown, printed, s + 1, next)) return true;
    }
    return false;
  }
  return p < printed.size() && shown[s] == printed[p] && matches(shown, printed, s + 1, p + 1);
}

/// Runs a command line in the examples' build folder; what it prints to both streams.
std::string output_of(const std::string& command) {
  const std::string line = "cd '" QKFLOW_EXAMPLES_DIR "' && ./" + command + " 2>&1";
  std::FILE* pipe = popen(line.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
  std::string text;
  std::array<char, 4096> buffer{};
  for (std::size_t got = 0; (got = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    text.append(buffer.data(), got);
  pclose(pipe);
  return text;
}

/// What is wrong with one block, or an empty text.
std::string complaint(const Block& block, const fs::path& root, bool run_programs) {
  if (block.source.starts_with("file: ")) {
    const std::string name = block.source.substr(6);
    const std::size_t hash = name.find('#');
    const std::string region = hash == std::string::npos ? "" : name.substr(hash + 1);
    const auto wanted = excerpt(read_lines(root / name.substr(0, hash)), region);
    if (!wanted) return name + " has no such region";
    if (*wanted != block.content) return "is not what " + name + " says:\n" + join(*wanted);
  } else if (block.source.starts_with("output: ")) {
    if (!run_programs) return {};
    const std::string printed = output_of(block.source.substr(8));
    if (!matches(block.content, split(printed))) return "is not what was printed:\n" + printed;
  } else if (block.language == "cpp" || block.language == "cmake") {
    return "is code that names no file it was taken from";
  }
  return {};
}

std::vector<fs::path> pages() {
  const fs::path root = QKFLOW_SOURCE_DIR;
  std::vector<fs::path> found{root / "README.md"};
  for (const auto& entry : fs::recursive_directory_iterator(root / "docs")) {
    if (entry.path().extension() == ".md") found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// Relative link targets of a page, without their anchors. Code, fenced or in backticks, has no links.
std::vector<std::string> link_targets(const Lines& lines) {
  std::vector<std::string> targets;
  bool fenced = false;
  for (const auto& line : lines) {
    if (line.starts_with("```")) fenced = !fenced;
    if (fenced) continue;
    for (auto at = line.find("]("); at != std::string::npos; at = line.find("](", at + 2)) {
      if (std::count(line.begin(), line.begin() + static_cast<std::ptrdiff_t>(at), '`') % 2 != 0) continue;
      std::string target = line.substr(at + 2, line.find(')', at) - at - 2);
      target.erase(std::min(target.find('#'), target.size()));
      if (!target.empty() && target.find(':') == std::string::npos) targets.push_back(target);
    }
  }
  return targets;
}

/// All matches of the pattern's first group.
std::vector<std::string> found_in(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match) {
    found.push_back((*match)[1]);
  }
  return found;
}

constexpr const char* source_key = R"(\[([A-Z][A-Za-z]+[0-9][0-9])\])";
constexpr const char* header_name = R"(`(?:(?:include/)?qkflow/)?([a-z_]+/[a-z0-9_/]+\.hpp)`)";

}  // namespace

TEST_CASE("every block of code and output in the documentation is the real one") {
#ifdef QKFLOW_HAS_EXAMPLES
  const bool run_programs = true;
#else
  const bool run_programs = false;
#endif
  for (const auto& page : pages()) {
    for (const auto& block : blocks_of(read_lines(page))) {
      INFO(page.string() << ":" << block.line << " (" << block.source << ")");
      CHECK(complaint(block, QKFLOW_SOURCE_DIR, run_programs) == "");
    }
  }
}

TEST_CASE("every relative link in the documentation leads to a file") {
  for (const auto& page : pages()) {
    for (const auto& target : link_targets(read_lines(page))) {
      INFO(page.string() << ": " << target);
      CHECK(fs::exists(page.parent_path() / target));
    }
  }
}

TEST_CASE("every header named in the documentation exists") {
  const fs::path root = QKFLOW_SOURCE_DIR;
  for (const auto& page : pages()) {
    for (const auto& header : found_in(join(read_lines(page)), header_name)) {
      INFO(page.string() << ": " << header);
      CHECK((fs::exists(root / "include/qkflow" / header) || fs::exists(root / "include" / header) ||
             fs::exists(root / header)));
    }
  }
}

TEST_CASE("docs/api.md names every public header") {
  const fs::path include = fs::path(QKFLOW_SOURCE_DIR) / "include" / "qkflow";
  const std::string api = join(read_lines(fs::path(QKFLOW_SOURCE_DIR) / "docs" / "api.md"));
  for (const auto& entry : fs::recursive_directory_iterator(include)) {
    const std::string header = fs::relative(entry.path(), include).generic_string();
    if (!header.ends_with(".hpp") || header.find("detail/") != std::string::npos) continue;
    INFO(header);
    CHECK((header == "qkflow.hpp" || api.find("| `" + header + "` |") != std::string::npos));
  }
}

TEST_CASE("every source key in headers and documentation is in the bibliography") {
  const fs::path root = QKFLOW_SOURCE_DIR;
  const std::string bibliography = join(read_lines(root / "docs" / "bibliography.md"));
  std::vector<fs::path> files = pages();
  for (const auto& entry : fs::recursive_directory_iterator(root / "include")) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  for (const auto& file : files) {
    for (const auto& key : found_in(join(read_lines(file)), source_key)) {
      INFO(file.string() << ": " << key);
      CHECK(bibliography.find("**[" + key + "]**") != std::string::npos);
    }
  }
}

TEST_CASE("a block that differs from its source is found") {
  const fs::path root = QKFLOW_SOURCE_DIR;
  const auto only = [](const char* markdown) { return blocks_of(split(markdown)).at(0); };
  CHECK(complaint(only("```sh\nls\n```"), root, true).empty());
  CHECK_FALSE(complaint(only("```cpp\nint x;\n```"), root, true).empty());
  CHECK_FALSE(complaint(only("<!-- file: LICENSE -->\n```text\nsomething else\n```"), root, true).empty());
  CHECK_FALSE(complaint(only("<!-- file: LICENSE#nowhere -->\n```text\n```"), root, true).empty());
  CHECK_FALSE(complaint(only("<!-- output: no-such-program -->\n```text\nfine\n```"), root, true).empty());
}

TEST_CASE("a region is cut out without its indentation") {
  const Lines file{"int main() {", "  // [one]", "  first();", "", "    second();", "  // [/one]", "}"};
  CHECK(excerpt(file, "one") == Lines{"first();", "", "  second();"});
  CHECK_FALSE(excerpt(file, "two").has_value());
  CHECK(excerpt({"# [use]", "add(x)", "# [/use]"}, "use") == Lines{"add(x)"});
  CHECK(excerpt({"// SPDX-License-Identifier: MIT", "", "int x;"}, "") == Lines{"int x;"});
}

TEST_CASE("dots in a shown output stand for any number of lines") {
  const Lines printed{"a", "b", "c"};
  CHECK(matches({"a", "b", "c"}, printed));
  CHECK(matches({"a", "..."}, printed));
  CHECK(matches({"a", "...", "b", "...", "c"}, printed));
  CHECK_FALSE(matches({"a", "...", "b"}, printed));
  CHECK_FALSE(matches({"a", "b"}, printed));
}

TEST_CASE("source keys and header names are recognized") {
  CHECK(found_in("as in [Hairer06] and [1], x[AB1]", source_key) == std::vector<std::string>{"Hairer06"});
  CHECK(found_in("`flow/solve.hpp`, `qkflow/math/roots.hpp`, flow/x.hpp", header_name) ==
        std::vector<std::string>{"flow/solve.hpp", "math/roots.hpp"});
}

TEST_CASE("links are read past code") {
  CHECK(link_targets({"see [a](b.md#part) and [c](https://example.org)", "`v[](x)`", "```", "[d](e)", "```"}) ==
        std::vector<std::string>{"b.md"});
}
