// Tables of results: columns of text for people, Markdown, or comma-separated values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mc {

/// Columns of the terminal at `fd`; kTerminalColumns if `fd` is not a terminal or its size is unknown.
constexpr size_t kTerminalColumns = 80;
size_t terminal_columns(int fd);
/// Lines of the terminal at `fd`; kTerminalRows if `fd` is not a terminal or its size is unknown.
constexpr size_t kTerminalRows = 24;
size_t terminal_rows(int fd);

/// The form of a table: columns for people, a table of Markdown, or comma-separated values (RFC 4180).
enum class TableForm : uint8_t { text, markdown, csv };

/// Columns are aligned to the right, but the first and those in left(). The header line has the units.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { add(std::move(header)); }
  /// Columns with these headers are aligned to the left.
  Table& left(const std::vector<std::string_view>& headers);
  void add(std::vector<std::string> row);
  std::string text(TableForm form = TableForm::text) const;

  /// The text of one row, with the header before the first row, for rows that are measured slowly.
  /// A column is as wide as its header and `expect`ed cells, and grows with a wider cell.
  Table& expect(const std::vector<std::string>& cells);
  std::string next(std::vector<std::string> row, TableForm form = TableForm::text);

 private:
  std::string head(TableForm form) const;
  std::string line(const std::vector<std::string>& row, TableForm form) const;

  std::vector<std::vector<std::string>> rows_;
  std::vector<size_t> widths_;
  std::vector<bool> left_;  // by column; the columns behind its end are aligned to the right
};

}  // namespace mc
