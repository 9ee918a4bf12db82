#include "rows.h"

#include <utility>

namespace mc::bench {

Result<std::unique_ptr<Rows>> Rows::open(const cli::Args& args, std::string_view schema, Table table,
                                         RowsOptions options) {
  MC_TRY(sink, Sink::open(args));
  std::unique_ptr<Rows> rows(new Rows(std::move(sink), result_head(schema, args), std::move(table), options.list));
  const auto write = [rows = rows.get()] { (void)rows->summary(true); };
  MC_TRY(interruption, Interruption::open(write, std::move(options.clean)));
  rows->interruption_ = std::move(interruption);
  return rows;
}

Rows::Rows(Sink sink, Json head, Table table, std::string_view list)
    : sink_(std::move(sink)), table_(std::move(table)), list_(list), result_(std::move(head)) {}

void Rows::fact(std::string_view key, Json value) {
  const auto lock = interruption_->lock();
  result_.set(key, std::move(value));
}

Result<void> Rows::text(std::string_view text) {
  const auto lock = interruption_->lock();
  return sink_.text(text);
}

Result<void> Rows::add(Json point, std::vector<std::string> cells) {
  std::vector<Json> points;
  points.push_back(std::move(point));
  return add(std::move(points), std::move(cells));
}

Result<void> Rows::add(std::vector<Json> points, std::vector<std::string> cells) {
  const auto lock = interruption_->lock();
  for (Json& point : points) {
    MC_CHECK(sink_.line(point));
    points_.push(std::move(point));
  }
  return sink_.next(table_, std::move(cells));
}

Result<void> Rows::finish() {
  const auto lock = interruption_->lock();
  return summary(false);
}

Result<void> Rows::summary(bool interrupted) {
  result_.set(list_, std::move(points_)).set("interrupted", interrupted);
  MC_CHECK(sink_.line(result_));
  return sink_.finish();
}

}  // namespace mc::bench
