// HTTP over Unix sockets: who may come in, and whose the path is.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "http/client.h"
#include "http/server.h"
#include "test.h"
#include "unit/http/raw_client.h"

namespace socket_test {

using namespace mc;
using namespace mc::http;

namespace {

std::unique_ptr<Server> open_server(Server::Handler handler, ServerOptions options) {
  auto server = Server::open(options, std::move(handler));
  REQUIRE_OK(server);
  return std::move(*server);
}

}  // namespace

TEST_CASE("http/server: a Unix socket serves its own user, is private, and goes with its server") {
  const std::string path = std::filesystem::temp_directory_path() / ("mct-http-" + std::to_string(::getpid()));
  ServerOptions options;
  options.socket_path = path;
  const auto handler = [](Request request, Responder out) {
    out.respond(
        {request.over_socket ? 200 : 500, {}, request.peer + std::string(find_header(request.headers, "host"))});
  };
  {
    auto server = open_server(handler, options);
    CHECK(server->url() == "unix:" + path);
    CHECK((std::filesystem::status(path).permissions() & std::filesystem::perms::all) ==
          (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
    for (int i = 0; i < 3; ++i) {
      const auto answer = fetch(Method::get, server->url(), "/x", {}, "", test::patience());
      REQUIRE_OK(answer);
      CHECK(answer->status == 200);
      CHECK(answer->body == "user " + std::to_string(::geteuid()) + "localhost");
    }
    const auto second = Server::open(options, handler);
    REQUIRE_FALSE(second);
    CHECK(second.error().mc == err::kPortInUse);
    CHECK(second.error().what.find(path) != std::string::npos);
    REQUIRE_OK(fetch(Method::get, server->url(), "/x", {}, "", test::patience()));
  }
  CHECK_FALSE(std::filesystem::exists(path));
  const auto nobody = fetch(Method::get, "unix:" + path, "/x", {}, "", test::patience());
  REQUIRE_FALSE(nobody);
  CHECK(nobody.error().mc == err::kPeerUnreachable);
}

TEST_CASE("http/server: a socket that a killed process left is replaced, another file is not") {
  const std::string path = std::filesystem::temp_directory_path() / ("mct-http-" + std::to_string(::getpid()));
  ServerOptions options;
  options.socket_path = path;
  const auto handler = [](Request, Responder out) { out.respond({200}); };
  {
    const Fd dead(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    REQUIRE(::bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  }
  REQUIRE(std::filesystem::exists(path));
  {
    auto server = open_server(handler, options);
    REQUIRE_OK(fetch(Method::get, server->url(), "/", {}, "", test::patience()));
  }
  std::ofstream(path) << "mine";
  const auto refused = Server::open(options, handler);
  REQUIRE_FALSE(refused);
  CHECK(std::filesystem::file_size(path) == 4);
  std::filesystem::remove(path);
  options.socket_path = "/tmp/" + std::string(200, 'x');
  CHECK(Server::open(options, handler).error().mc == err::kCannotListen);
}

}  // namespace socket_test
