#!/bin/sh
# program_bytes.sh PROGRAM FILE.cpp: relay_program() of launcher/remote/relay.hpp, with its bytes.
set -e
{
  echo '#include "launcher/remote/relay.hpp"'
  echo 'namespace {'
  echo 'constexpr unsigned char kProgram[] = {'
  od -An -v -tx1 "$1" | sed 's/ \(..\)/0x\1,/g'
  echo '};'
  echo '}  // namespace'
  echo 'std::string_view dtrain::relay_program() {'
  echo '  return {reinterpret_cast<const char*>(kProgram), sizeof kProgram};'
  echo '}'
} >"$2"
