#pragma once

#include <boost/asio/io_context.hpp>
#include <string_view>

// The loops of head, node and supervisor, and who measures them.
namespace dtrain::wire {

// What a handler may take where nobody sets DTRAIN_HANDLER_LIMIT_MS is not measured at all. Tests
// set it: then each handler of run_loop() that takes longer than so many milliseconds is an error
// in the log. What counts is the time in which the handler ran or waited for a disk, a lock or
// another process; not that in which a busy machine gave it no processor.
inline constexpr const char* kHandlerLimit = "DTRAIN_HANDLER_LIMIT_MS";
inline constexpr const char* kHandlerTooLong = "a handler held the loop up";

// Runs the context on this thread until it stops, as its run() does.
void run_loop(boost::asio::io_context& context);

// What the handler that is running is about, for the log: "GET /v1/status". Does nothing where no
// handler is measured.
void handler_does(std::string_view what);

}  // namespace dtrain::wire
