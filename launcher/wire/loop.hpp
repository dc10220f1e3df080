#pragma once

#include <boost/asio/io_context.hpp>
#include <string_view>

// The loops of head, node and supervisor, and who measures them.
namespace dtrain::wire {

// Where nobody sets DTRAIN_HANDLER_LIMIT_MS handlers are not measured at all. Tests set it: then
// each handler of run_loop() that works for longer than so many milliseconds is an error in the
// log, and so is one that takes kWaitingFactor times as long in all: working, or waiting for a
// disk, a lock or another process, which a busy machine makes slow. The time in which it was ready
// and had no processor does not count, nor that in which it waited for a program to start.
inline constexpr const char* kHandlerLimit = "DTRAIN_HANDLER_LIMIT_MS";
inline constexpr int kWaitingFactor = 60;
inline constexpr const char* kHandlerTooLong = "a handler held the loop up";

// Runs the context on this thread until it stops, as its run() does.
void run_loop(boost::asio::io_context& context);

// What the handler that is running is about, for the log: "GET /v1/status". Does nothing where no
// handler is measured.
void handler_does(std::string_view what);

}  // namespace dtrain::wire
