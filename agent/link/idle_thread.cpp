#include "agent/link/idle_thread.hpp"

#include <sched.h>

#include <boost/asio/executor_work_guard.hpp>

namespace dtrain::link {

IdleThread::IdleThread()
    : thread_([this] {
        const sched_param none{};
        ::sched_setscheduler(0, SCHED_IDLE, &none);
        const auto work = boost::asio::make_work_guard(context_);
        context_.run();
      }) {}

void IdleThread::stop() {
  context_.stop();
  if (thread_.joinable()) thread_.join();
}

IdleThread::Socket IdleThread::take(Socket socket) {
  Socket taken(context_);
  taken.assign(boost::asio::local::stream_protocol(), socket.release());
  return taken;
}

}  // namespace dtrain::link
