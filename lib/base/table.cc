#include "base/table.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace mc {
namespace {

/// Characters, not bytes: headers hold "±".
size_t width_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

}  // namespace

size_t terminal_columns(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kTerminalColumns;
}

size_t terminal_rows(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_row > 1 ? size.ws_row : kTerminalRows;
}

Table& Table::left(const std::vector<std::string_view>& headers) {
  const std::vector<std::string>& all = rows_.front();
  left_.resize(all.size());
  for (const std::string_view header : headers) {
    const auto found = std::find(all.begin(), all.end(), header);
    MC_ASSERT(found != all.end());
    left_[static_cast<size_t>(found - all.begin())] = true;
  }
  return *this;
}

Table& Table::expect(const std::vector<std::string>& cells) {
  widths_.resize(std::max(widths_.size(), cells.size()));
  for (size_t i = 0; i < cells.size(); ++i) widths_[i] = std::max(widths_[i], width_of(cells[i]));
  return *this;
}

void Table::add(std::vector<std::string> row) {
  expect(row);
  rows_.push_back(std::move(row));
}

std::string Table::text(TableForm form) const {
  std::string out = head(form);
  for (size_t i = 1; i < rows_.size(); ++i) out += line(rows_[i], form);
  return out;
}

std::string Table::next(std::vector<std::string> row, TableForm form) {
  const bool first = rows_.size() == 1;
  add(std::move(row));
  return (first ? head(form) : "") + line(rows_.back(), form);
}

std::string Table::head(TableForm form) const {
  std::string out = line(rows_.front(), form);
  if (form != TableForm::markdown) return out;
  for (size_t i = 0; i < rows_.front().size(); ++i) out += i == 0 ? "| --- |" : " ---: |";
  return out + "\n";
}

std::string Table::line(const std::vector<std::string>& row, TableForm form) const {
  std::string out;
  if (form == TableForm::markdown) {
    for (const std::string& cell : row) out += (out.empty() ? "| " : " ") + cell + " |";
    return out + "\n";
  }
  if (form == TableForm::csv) {
    for (size_t i = 0; i < row.size(); ++i) out += (i > 0 ? "," : "") + csv_cell(row[i]);
    return out + "\n";
  }
  for (size_t i = 0; i < row.size(); ++i) {
    const bool is_left = i == 0 || (i < left_.size() && left_[i]);
    const std::string pad(widths_[i] - width_of(row[i]), ' ');
    out += (i > 0 ? "  " : "") + (is_left ? row[i] + pad : pad + row[i]);
  }
  out.erase(out.find_last_not_of(' ') + 1);
  return out + "\n";
}

}  // namespace mc
