#include "jinja/budget.h"

namespace mc::jinja {

Result<void> Budget::make(size_t chars) {
  if (chars > limits_.chars - std::min(chars_, limits_.chars))
    return failure("LimitError",
                   "the template makes texts of more than " + std::to_string(limits_.chars) + " characters in all");
  chars_ += chars;
  return read(chars);
}

Error Budget::out_of_steps() const {
  return failure("LimitError", "the template takes more than " + std::to_string(limits_.steps) + " steps");
}
Error Budget::out_of_work() const {
  return failure("LimitError",
                 "the template reads and writes more than " + std::to_string(limits_.work) + " characters on its way");
}
Error Budget::out_of_output() const {
  return failure("LimitError", "the output has more than " + std::to_string(limits_.output) + " characters");
}
Error Budget::too_deep() const {
  return failure("RecursionError", "nested deeper than " + std::to_string(limits_.depth) + " levels");
}

}  // namespace mc::jinja
