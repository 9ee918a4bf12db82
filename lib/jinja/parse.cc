// A template's source to its tree: the statements, then the checks that jinja2 makes on a whole template.
#include "jinja/check.h"
#include "jinja/jinja.h"
#include "jinja/statement_parser.h"

namespace mc::jinja {

Result<Tree> parse(std::string_view source) {
  if (source.size() > kSourceBytesMax)
    return Error{Code::invalid, "the template has " + std::to_string(source.size()) + " bytes; the most is " +
                                    std::to_string(kSourceBytesMax)};
  ParseState state(source);
  Tree tree;
  tree.loop_id = state.names.id_of("loop");
  tree.caller_id = state.names.id_of("caller");
  tree.kwargs_id = state.names.id_of("kwargs");
  tree.varargs_id = state.names.id_of("varargs");
  MC_TRY(body, StatementParser(state).run());
  tree.body = std::move(body);
  tree.names = state.names.take();
  MC_CHECK(check(tree));
  return tree;
}

}  // namespace mc::jinja
