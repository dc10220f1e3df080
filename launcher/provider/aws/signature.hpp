#pragma once

#include <string>

#include "launcher/core/clock.hpp"
#include "launcher/provider/http.hpp"

namespace dtrain::aws {

struct Credentials;

// What a signature is of, besides the request.
struct SigningScope {
  std::string region;
  std::string service;  // "ec2"
};

// AWS Signature Version 4 of a POST without a query: adds X-Amz-Date, X-Amz-Security-Token where
// there is a token, and Authorization, which is of these, of the host and of all other fields that
// the request has. Of our own, for libcurl's is right only since 8.19 and knows no clock but its
// own. Throws Error(internal) for a URL with a query.
void sign(HttpRequest& request, const SigningScope& scope, const Credentials& credentials,
          WallTime now);

}  // namespace dtrain::aws
