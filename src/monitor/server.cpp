#include "monitor/server.h"

#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/listener.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <string_view>
#include <thread>
#include <utility>

#include "monitor/listener.h"

namespace dfa::monitor {
namespace {

constexpr int kPatience = 5;         // seconds that a connection may say or take nothing
constexpr int kLongest = 8 << 10;    // bytes of a request's head, and of a body that nobody wants
constexpr timeval kRest{0, 100000};  // between attempts, where no more connections can be taken

template <typename Handle>
Handle* made(Handle* handle) {
  if (handle == nullptr) throw IoError("libevent: out of memory or of file descriptors");
  return handle;
}

constexpr const char* kPlain = "text/plain; charset=utf-8";
constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

void answer(evhttp_request* request, int status, const char* reason, const char* type,
            const std::string& body) {
  evkeyvalq* headers = ::evhttp_request_get_output_headers(request);
  ::evhttp_add_header(headers, "Content-Type", type);
  ::evhttp_add_header(headers, "Content-Length", std::to_string(body.size()).c_str());
  ::evhttp_add_header(headers, "Connection", "close");
  if (status == 405) ::evhttp_add_header(headers, "Allow", "GET, HEAD");
  const std::unique_ptr<evbuffer, decltype(&::evbuffer_free)> buffer(::evbuffer_new(),
                                                                     ::evbuffer_free);
  // libevent would send it in answer to a HEAD too.
  const bool wanted = ::evhttp_request_get_command(request) != EVHTTP_REQ_HEAD;
  if (wanted) ::evbuffer_add(buffer.get(), body.data(), body.size());
  ::evhttp_send_reply(request, status, reason, buffer.get());
}

}  // namespace

// libevent's HTTP server, and the thread that it runs on.
class Server::Loop {
 public:
  Loop(Descriptor& listener, std::function<std::string()> metrics)
      : metrics_(std::move(metrics)),
        base_(made(::event_base_new())),
        http_(made(::evhttp_new(base_.get()))) {
    int pipe[2] = {-1, -1};
    if (::pipe2(pipe, O_CLOEXEC) != 0) {
      throw IoError(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
    }
    woken_.reset(pipe[0]);
    wake_.reset(pipe[1]);
    stop_.reset(made(::event_new(base_.get(), woken_.get(), EV_READ, &Loop::on_stop, this)));
    ::event_add(stop_.get(), nullptr);
    ::evhttp_set_timeout(http_.get(), kPatience);
    ::evhttp_set_max_headers_size(http_.get(), kLongest);
    ::evhttp_set_max_body_size(http_.get(), kLongest);
    ::evhttp_set_allowed_methods(http_.get(), 0xffff);  // answer() refuses them in our words
    ::evhttp_set_gencb(http_.get(), &Loop::on_request, this);
    auto* bound = made(::evhttp_accept_socket_with_handle(http_.get(), listener.get()));
    listener.release();  // the HTTP server's from here on
    ::evconnlistener_set_error_cb(::evhttp_bound_socket_get_listener(bound), &Loop::on_no_more);
    thread_ = std::thread([this] { serve(); });
  }

  ~Loop() {
    wake_.reset(-1);
    thread_.join();
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

 private:
  void serve() {
    // A client that goes away while it is answered is no signal.
    sigset_t pipe{};
    ::sigemptyset(&pipe);
    ::sigaddset(&pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    ::event_base_dispatch(base_.get());
  }

  struct Free {
    void operator()(event_base* base) const { ::event_base_free(base); }
    void operator()(evhttp* http) const { ::evhttp_free(http); }
    void operator()(event* one) const { ::event_free(one); }
  };
  template <typename Handle>
  using Owned = std::unique_ptr<Handle, Free>;

  static Loop& of(void* self) { return *static_cast<Loop*>(self); }

  static void on_stop(int, short, void* self) { ::event_base_loopbreak(of(self).base_.get()); }

  // No more files may be open: until some connection has lost patience, asking again at once would
  // keep a processor busy.
  static void on_no_more(evconnlistener* listener, void*) {
    ::evconnlistener_disable(listener);
    const auto go_on = [](int, short, void* rested) {
      ::evconnlistener_enable(static_cast<evconnlistener*>(rested));
    };
    ::event_base_once(::evconnlistener_get_base(listener), -1, EV_TIMEOUT, go_on, listener, &kRest);
  }

  static void on_request(evhttp_request* request, void* self) {
    const auto method = ::evhttp_request_get_command(request);
    const char* named = ::evhttp_uri_get_path(::evhttp_request_get_evhttp_uri(request));
    const std::string_view path = named != nullptr ? named : "";
    if (method != EVHTTP_REQ_GET && method != EVHTTP_REQ_HEAD) {
      answer(request, 405, "Method Not Allowed", kPlain, "GET /metrics\n");
    } else if (path == "/metrics") {
      of(self).scrape(request);
    } else if (path == "/") {
      answer(request, 200, "OK", kPlain, "dfa monitor: see /metrics\n");
    } else {
      answer(request, 404, "Not Found", kPlain, "GET /metrics\n");
    }
  }

  void scrape(evhttp_request* request) const {
    try {
      answer(request, 200, "OK", kMetricsType, metrics_());
    } catch (const std::exception& error) {
      answer(request, 500, "Internal Server Error", kPlain, error.what() + std::string("\n"));
    }
  }

  std::function<std::string()> metrics_;
  Owned<event_base> base_;
  Owned<evhttp> http_;
  Owned<event> stop_;
  Descriptor woken_, wake_;  // a pipe; closed on one end: the thread ends
  std::thread thread_;
};

Server::Server(const std::string& address, std::function<std::string()> metrics) {
  Descriptor listener = listen_at(address);
  address_ = address_of(listener, address);
  loop_ = std::make_unique<Loop>(listener, std::move(metrics));
}

Server::~Server() = default;

}  // namespace dfa::monitor
