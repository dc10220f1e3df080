#pragma once

#include "launcher/wire/fields.hpp"
#include "launcher/wire/session.hpp"

// For the messages that carry lists of setup commands.
namespace dtrain::wire {

BOOST_DESCRIBE_STRUCT(SetupList, (), (list, commands))

}  // namespace dtrain::wire
