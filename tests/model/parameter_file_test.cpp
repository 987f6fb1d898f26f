// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/model/parameter_file.hpp"

#include <sstream>

#include "qkflow/model/initialization.hpp"
#include "support/catch.hpp"

using namespace qkflow;

namespace {

const DatasetShape shape{2, 3, 2};

template <class Parameters>
ColumnVector<double> parse(const Parameters& parameters, const std::string& text) {
  std::istringstream in(text);
  return read_parameters(in, parameters, "start.txt");
}

}  // namespace

TEST_CASE("parameters read back to the same bits, whatever their order in memory") {
  const auto fafo = fafo_parameters<double>(shape, 2, {}, true);
  const ColumnVector<double> theta = uniform_start(fafo, 1);
  CHECK(parse(fafo, parameter_text(fafo, theta)) == theta);
  const auto caco = caco_parameters<double>(shape);
  const ColumnVector<double> collapsed = 1e-300 * uniform_start(caco, 1);
  CHECK(parse(caco, parameter_text(caco, collapsed)) == collapsed);
  const auto path = std::filesystem::temp_directory_path() / "qkflow_parameter_file_test.txt";
  write_parameters(path, caco, collapsed);
  CHECK(read_parameters(path, caco) == collapsed);
  std::filesystem::remove(path);
  CHECK_THROWS_AS(read_parameters(path, caco), IoError);
}

TEST_CASE("the text is rows of named matrices") {
  const auto caco = caco_parameters<double>(shape);
  ColumnVector<double> theta(12);
  theta << 1, 2, 3, 4, 5, 6, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5;  // W_QK by rows, W_OV by columns
  CHECK(parameter_text(caco, theta) ==
        "qkflow parameters 1\nW_QK 2 3\n1\t2\t3\n4\t5\t6\nW_OV 2 3\n0.5\t2.5\t4.5\n1.5\t3.5\t5.5\n");
}

TEST_CASE("another text is refused with its line") {
  const auto caco = caco_parameters<double>(shape);
  const std::string good = parameter_text(caco, uniform_start(caco, 1));
  const auto refuses = [&](const std::string& text, const char* message) {
    CHECK_THROWS_WITH(parse(caco, text), Catch::Contains(message));
  };
  refuses("", "start.txt:1: ends where");
  refuses("label\tquery\n", "start.txt:1: is not a parameter file");
  refuses(good.substr(0, good.find("W_OV")), "start.txt:5: ends where 'W_OV 2 3' should be");
  refuses("qkflow parameters 1\nW_QK 2 4\n", "start.txt:2: 'W_QK 2 4' where these parameters have 'W_QK 2 3'");
  refuses("qkflow parameters 1\nW_QK 2 3\n1\t2\n", "start.txt:3: row 0 of W_QK is not 3 numbers");
  refuses("qkflow parameters 1\nW_QK 2 3\n1\t2\t3\t4\n", "start.txt:3: row 0 of W_QK is not 3 numbers");
  refuses("qkflow parameters 1\nW_QK 2 3\n1\t2,5\t3\n", "start.txt:3: row 0 of W_QK is not 3 numbers");
  refuses("qkflow parameters 1\nW_QK 2 3\n1\tnan\t3\n", "start.txt:3: row 0 of W_QK holds a number that is not finite");
  refuses(good + "bias 2 1\n", "more follows");
  CHECK_THROWS_WITH(parameter_text(caco, ColumnVector<double>(3)), Catch::Contains("size of theta = 3"));
}
