// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/report/csv.hpp"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <locale>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/comma_locale.hpp"
#include "support/precise.hpp"
#include "support/temporary_folder.hpp"

using namespace qkflow;
using qkflow_test::read_text;
using qkflow_test::TemporaryFolder;

TEST_CASE("csv_number: 17 significant digits in double, and every number reads back") {
  CHECK(csv_number(0.1) == "0.10000000000000001");
  CHECK(csv_number(0.1F) == "0.100000001");
  CHECK(csv_number(5) == "5");
  CHECK(csv_number(std::numeric_limits<double>::infinity()) == "inf");
  CHECK(csv_number(-std::numeric_limits<double>::infinity()) == "-inf");
  CHECK(csv_number(std::copysign(std::numeric_limits<double>::quiet_NaN(), -1.0)) == "nan");
  for (const double value : {1.0 / 3.0, 5e-324, 1.7976931348623157e308, -2.5e-17, 123456789.125}) {
    CHECK(std::strtod(csv_number(value).c_str(), nullptr) == value);
  }
  using qkflow_test::Precise;
  const Precise third = Precise(1) / 3;
  CHECK(Precise(csv_number(third)) == third);
}

TEST_CASE("CsvWriter and CsvTable: what is written is read") {
  const TemporaryFolder folder;
  {
    AtomicFile file(folder / "t.csv");
    CsvWriter csv(file, {"name", "x", "y"});
    csv.row("CACO", 0.1, 3);
    csv.row("a \"b\", c", std::numeric_limits<double>::quiet_NaN(), -1e-300);
    csv.row("", 1.5, 2);
    file.commit();
  }
  CHECK(read_text(folder / "t.csv") ==
        "name,x,y\nCACO,0.10000000000000001,3\n\"a \"\"b\"\", c\",nan,-1e-300\n,1.5,2\n");
  const CsvTable table = CsvTable::read(folder / "t.csv");
  CHECK(table.columns() == std::vector<std::string>{"name", "x", "y"});
  REQUIRE(table.rows() == 3);
  CHECK(table.text(1, "name") == "a \"b\", c");
  CHECK(table.text(2, "name").empty());
  CHECK(table.number(0, "x") == 0.1);
  CHECK(std::isnan(table.number(1, "x")));
  CHECK(table.column("y") == std::vector<double>{3, -1e-300, 2});
}

TEST_CASE("CsvWriter: rows of numbers as a list, and rows of the wrong length") {
  const TemporaryFolder folder;
  AtomicFile file(folder / "t.csv");
  CsvWriter csv(file, {"x", "y"});
  csv.row(std::vector<double>{1, 2});
  CHECK_THROWS_AS(csv.row(1.0), InvalidArgument);
  CHECK_THROWS_WITH(csv.row(1.0, 2.0, 3.0), Contains("number of cells = 3"));
  CHECK_THROWS_AS(csv.row(std::vector<double>{1, 2, 3}), InvalidArgument);
  CHECK_THROWS_AS(CsvWriter(file, {}), InvalidArgument);
  file.commit();
  CHECK(read_text(folder / "t.csv") == "x,y\n1,2\n");
}

TEST_CASE("CsvTable: foreign line ends, an empty line, a missing last line break") {
  const CsvTable table = CsvTable::parse("a,b\r\n1,2\r\n\n3,4", "text");
  CHECK(table.rows() == 2);
  CHECK(table.column("b") == std::vector<double>{2, 4});
}

TEST_CASE("CsvTable: errors name file, line and column") {
  CHECK_THROWS_WITH(CsvTable::read("no-such-file.csv"), Contains("no-such-file.csv"));
  CHECK_THROWS_AS(CsvTable::read("no-such-file.csv"), IoError);
  CHECK_THROWS_WITH(CsvTable::parse("", "t"), Contains("no header"));
  CHECK_THROWS_WITH(CsvTable::parse("a,b\n1\n", "t"), Contains("t, line 2: 1 cells, but the header has 2"));
  CHECK_THROWS_WITH(CsvTable::parse("a\n\"1\n", "t"), Contains("line 2") && Contains("quote"));
  const CsvTable table = CsvTable::parse("a,b\n1,x\n2,1.5 \n", "t");
  CHECK_THROWS_WITH(table.column("b"), Contains("t, line 2: b = 'x' is not a number"));
  CHECK_THROWS_WITH(table.number(1, "b"), Contains("line 3"));
  CHECK_THROWS_WITH(table.column("c"), Contains("column = c") && Contains("a, b"));
  CHECK_THROWS_AS(table.text(2, "a"), InvalidArgument);
}

TEST_CASE("CSV numbers ignore a locale with decimal commas") {
  const qkflow_test::CommaLocale comma;
  CHECK(csv_number(1234.5) == "1234.5");
  CHECK(CsvTable::parse("a\n1234.5\n", "t").number(0, "a") == 1234.5);
}
