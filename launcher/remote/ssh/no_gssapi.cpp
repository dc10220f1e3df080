#include <cstdint>

// libssh is linked statically, so that dtrain starts quickly and needs no library on anybody's
// machine. It was built with GSSAPI, which has no static library and which we never use: here is
// what it (and libcurl) calls of it, each answering that there is none (RFC 2744:
// GSS_S_UNAVAILABLE).
extern "C" {

void* GSS_C_NT_HOSTBASED_SERVICE = nullptr;
void* GSS_C_NT_USER_NAME = nullptr;

#define DTRAIN_NO_GSSAPI(name)                      \
  std::uint32_t name(std::uint32_t* minor_status);  \
  std::uint32_t name(std::uint32_t* minor_status) { \
    if (minor_status != nullptr) *minor_status = 0; \
    return std::uint32_t{16} << 16;                 \
  }

DTRAIN_NO_GSSAPI(gss_accept_sec_context)
DTRAIN_NO_GSSAPI(gss_acquire_cred)
DTRAIN_NO_GSSAPI(gss_add_oid_set_member)
DTRAIN_NO_GSSAPI(gss_create_empty_oid_set)
DTRAIN_NO_GSSAPI(gss_delete_sec_context)
DTRAIN_NO_GSSAPI(gss_display_name)
DTRAIN_NO_GSSAPI(gss_display_status)
DTRAIN_NO_GSSAPI(gss_get_mic)
DTRAIN_NO_GSSAPI(gss_import_name)
DTRAIN_NO_GSSAPI(gss_indicate_mechs)
DTRAIN_NO_GSSAPI(gss_init_sec_context)
DTRAIN_NO_GSSAPI(gss_inquire_cred)
DTRAIN_NO_GSSAPI(gss_inquire_cred_by_mech)
DTRAIN_NO_GSSAPI(gss_inquire_context)
DTRAIN_NO_GSSAPI(gss_release_buffer)
DTRAIN_NO_GSSAPI(gss_release_cred)
DTRAIN_NO_GSSAPI(gss_release_name)
DTRAIN_NO_GSSAPI(gss_release_oid_set)
DTRAIN_NO_GSSAPI(gss_test_oid_set_member)
DTRAIN_NO_GSSAPI(gss_unwrap)
DTRAIN_NO_GSSAPI(gss_verify_mic)
DTRAIN_NO_GSSAPI(gss_wrap)
}
