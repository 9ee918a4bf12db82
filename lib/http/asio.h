// The parts of Asio that server and client use, under short names (private to lib/http).
#pragma once

#ifdef __SANITIZE_THREAD__
#define BOOST_ASIO_DISABLE_FENCED_BLOCK  // for tests: ThreadSanitizer does not know fences, and none is needed
#endif

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

namespace mc::http {

namespace asio = boost::asio;
using boost::system::error_code;
using Executor = asio::io_context::executor_type;
using Protocol = asio::generic::stream_protocol;  // TCP or Unix sockets
using Socket = asio::basic_stream_socket<Protocol, Executor>;
using Timer =
    asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>, Executor>;

}  // namespace mc::http
