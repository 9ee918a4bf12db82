// The listening socket of one server: a TCP address or a Unix socket of this user alone (private to lib/http). Accepted
// sockets are non-blocking. While the operating system has no descriptor or memory for another connection, accepting
// pauses.
#pragma once

#include <functional>
#include <string>

#include "http/asio.h"
#include "http/server.h"

namespace mc::http::detail {

class Listener {
 public:
  /// A socket with the name of its other end, "127.0.0.1:51234" or "user 1000". The name is "" if the other end may not
  /// use this server, or has left.
  using OnAccept = std::function<void(Socket socket, const std::string& name)>;
  using OnPause = std::function<void(const char* why)>;

  /// The context and the options must outlive the listener.
  Listener(asio::io_context& io, const ServerOptions& options);
  ~Listener() { remove_path(); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  /// Binds and listens. MC5001 when the port is in use; other errors name the address and the step.
  Result<void> open();
  const std::string& url() const { return url_; }
  uint16_t port() const { return port_; }
  /// Accepts connections until close(). When `on_accept` throws std::bad_alloc, or the operating system gives no
  /// socket, `on_pause` is called with the cause, and accepting pauses for a moment.
  void start(OnAccept on_accept, OnPause on_pause);
  void close();
  /// Removes the Unix socket's file. Call it when the server has stopped.
  void remove_path();

 private:
  Result<void> open_tcp();
  Result<void> open_socket();
  void accept_next();
  const char* accept_some();
  void accept(int fd);

  asio::io_context& io_;
  const ServerOptions& options_;
  asio::basic_socket_acceptor<Protocol, Executor> acceptor_;
  Protocol protocol_{AF_INET, IPPROTO_TCP};
  Timer pause_;
  OnAccept on_accept_;
  OnPause on_pause_;
  std::string url_;
  uint16_t port_ = 0;
  bool owns_path_ = false;
};

}  // namespace mc::http::detail
