// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/report/table.hpp"

#include "support/catch.hpp"

using namespace qkflow;

TEST_CASE("Table: columns align, names left and numbers right, nothing trails") {
  Table table({{"name", Table::Align::left}, {"tau"}, {"note", Table::Align::left}});
  table.row({"a", "1.25", ""});
  table.row({"µ-long", "10.5", "x"});
  CHECK(table.rows() == 2);
  CHECK(table.text() ==
        "name     tau  note\n"
        "------  ----  ----\n"
        "a       1.25\n"
        "µ-long  10.5  x\n");
}

TEST_CASE("Table: without rows there is still a header") { CHECK(Table({{"x"}}).text() == "x\n-\n"); }

TEST_CASE("Table: a row of the wrong length is refused") {
  Table table({{"a"}, {"b"}});
  CHECK_THROWS_AS(table.row({"1"}), InvalidArgument);
  CHECK_THROWS_WITH(table.row({"1", "2", "3"}), Contains("number of cells = 3"));
}

TEST_CASE("text_width counts letters, not bytes") {
  CHECK(text_width("") == 0);
  CHECK(text_width("µ_OV") == 4);
}
