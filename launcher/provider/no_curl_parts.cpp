#include <cstdio>
#include <cstdlib>

// libcurl is linked statically, so that dtrain starts quickly and needs no library on anybody's
// machine. It was built for many protocols, whose libraries come with further ones or have no
// static form, and of which http.cpp allows HTTP/1.1 alone, without cookies and compression: here
// is what libcurl calls of them, so that none is linked. What it calls of GSSAPI is in
// launcher/remote/ssh/no_gssapi.cpp.
namespace {

[[noreturn]] void absent(const char* name) {
  std::fprintf(stderr, "dtrain: a defect: libcurl calls %s, which is not linked\n", name);
  std::abort();
}

}  // namespace

extern "C" {

// At libcurl's own start and end: nothing is to be done.
int libssh2_init(int flags);
int libssh2_init(int) {
  return 0;
}
void libssh2_exit();
void libssh2_exit() {}
// For a name that is not ASCII: there is no such library, which libcurl takes for an answer.
const char* idn2_check_version(const char* wanted);
const char* idn2_check_version(const char*) {
  return nullptr;
}

#define DTRAIN_ABSENT(name) \
  void name();              \
  void name() {             \
    absent(#name);          \
  }

// brotli
DTRAIN_ABSENT(BrotliDecoderCreateInstance)
DTRAIN_ABSENT(BrotliDecoderDecompressStream)
DTRAIN_ABSENT(BrotliDecoderDestroyInstance)
DTRAIN_ABSENT(BrotliDecoderGetErrorCode)
DTRAIN_ABSENT(BrotliDecoderVersion)
// RTMP
DTRAIN_ABSENT(RTMP_Alloc)
DTRAIN_ABSENT(RTMP_Close)
DTRAIN_ABSENT(RTMP_Connect1)
DTRAIN_ABSENT(RTMP_ConnectStream)
DTRAIN_ABSENT(RTMP_Free)
DTRAIN_ABSENT(RTMP_Init)
DTRAIN_ABSENT(RTMP_Read)
DTRAIN_ABSENT(RTMP_SetBufferMS)
DTRAIN_ABSENT(RTMP_SetupURL)
DTRAIN_ABSENT(RTMP_Write)
// LDAP
DTRAIN_ABSENT(ber_bvfree)
DTRAIN_ABSENT(ber_free)
DTRAIN_ABSENT(ber_memfree)
DTRAIN_ABSENT(ber_memvfree)
DTRAIN_ABSENT(ber_sockbuf_add_io)
DTRAIN_ABSENT(ldap_abandon_ext)
DTRAIN_ABSENT(ldap_err2string)
DTRAIN_ABSENT(ldap_free_urldesc)
DTRAIN_ABSENT(ldap_get_attribute_ber)
DTRAIN_ABSENT(ldap_get_dn_ber)
DTRAIN_ABSENT(ldap_get_option)
DTRAIN_ABSENT(ldap_init_fd)
DTRAIN_ABSENT(ldap_memfree)
DTRAIN_ABSENT(ldap_msgfree)
DTRAIN_ABSENT(ldap_msgtype)
DTRAIN_ABSENT(ldap_parse_result)
DTRAIN_ABSENT(ldap_parse_sasl_bind_result)
DTRAIN_ABSENT(ldap_pvt_url_scheme2proto)
DTRAIN_ABSENT(ldap_result)
DTRAIN_ABSENT(ldap_sasl_bind)
DTRAIN_ABSENT(ldap_search_ext)
DTRAIN_ABSENT(ldap_set_option)
DTRAIN_ABSENT(ldap_start_tls)
DTRAIN_ABSENT(ldap_unbind_ext)
DTRAIN_ABSENT(ldap_url_parse)
// names that are not ASCII
DTRAIN_ABSENT(idn2_free)
DTRAIN_ABSENT(idn2_lookup_ul)
// SCP and SFTP
DTRAIN_ABSENT(libssh2_agent_connect)
DTRAIN_ABSENT(libssh2_agent_disconnect)
DTRAIN_ABSENT(libssh2_agent_free)
DTRAIN_ABSENT(libssh2_agent_get_identity)
DTRAIN_ABSENT(libssh2_agent_init)
DTRAIN_ABSENT(libssh2_agent_list_identities)
DTRAIN_ABSENT(libssh2_agent_userauth)
DTRAIN_ABSENT(libssh2_channel_free)
DTRAIN_ABSENT(libssh2_channel_read_ex)
DTRAIN_ABSENT(libssh2_channel_send_eof)
DTRAIN_ABSENT(libssh2_channel_wait_closed)
DTRAIN_ABSENT(libssh2_channel_wait_eof)
DTRAIN_ABSENT(libssh2_channel_write_ex)
DTRAIN_ABSENT(libssh2_hostkey_hash)
DTRAIN_ABSENT(libssh2_knownhost_add)
DTRAIN_ABSENT(libssh2_knownhost_checkp)
DTRAIN_ABSENT(libssh2_knownhost_del)
DTRAIN_ABSENT(libssh2_knownhost_free)
DTRAIN_ABSENT(libssh2_knownhost_get)
DTRAIN_ABSENT(libssh2_knownhost_init)
DTRAIN_ABSENT(libssh2_knownhost_readfile)
DTRAIN_ABSENT(libssh2_knownhost_writefile)
DTRAIN_ABSENT(libssh2_scp_recv2)
DTRAIN_ABSENT(libssh2_scp_send64)
DTRAIN_ABSENT(libssh2_session_abstract)
DTRAIN_ABSENT(libssh2_session_block_directions)
DTRAIN_ABSENT(libssh2_session_callback_set)
DTRAIN_ABSENT(libssh2_session_disconnect_ex)
DTRAIN_ABSENT(libssh2_session_flag)
DTRAIN_ABSENT(libssh2_session_free)
DTRAIN_ABSENT(libssh2_session_handshake)
DTRAIN_ABSENT(libssh2_session_hostkey)
DTRAIN_ABSENT(libssh2_session_init_ex)
DTRAIN_ABSENT(libssh2_session_last_errno)
DTRAIN_ABSENT(libssh2_session_last_error)
DTRAIN_ABSENT(libssh2_session_method_pref)
DTRAIN_ABSENT(libssh2_session_set_blocking)
DTRAIN_ABSENT(libssh2_sftp_close_handle)
DTRAIN_ABSENT(libssh2_sftp_init)
DTRAIN_ABSENT(libssh2_sftp_last_error)
DTRAIN_ABSENT(libssh2_sftp_mkdir_ex)
DTRAIN_ABSENT(libssh2_sftp_open_ex)
DTRAIN_ABSENT(libssh2_sftp_read)
DTRAIN_ABSENT(libssh2_sftp_readdir_ex)
DTRAIN_ABSENT(libssh2_sftp_rename_ex)
DTRAIN_ABSENT(libssh2_sftp_rmdir_ex)
DTRAIN_ABSENT(libssh2_sftp_seek64)
DTRAIN_ABSENT(libssh2_sftp_shutdown)
DTRAIN_ABSENT(libssh2_sftp_stat_ex)
DTRAIN_ABSENT(libssh2_sftp_statvfs)
DTRAIN_ABSENT(libssh2_sftp_symlink_ex)
DTRAIN_ABSENT(libssh2_sftp_unlink_ex)
DTRAIN_ABSENT(libssh2_sftp_write)
DTRAIN_ABSENT(libssh2_userauth_authenticated)
DTRAIN_ABSENT(libssh2_userauth_keyboard_interactive_ex)
DTRAIN_ABSENT(libssh2_userauth_list)
DTRAIN_ABSENT(libssh2_userauth_password_ex)
DTRAIN_ABSENT(libssh2_userauth_publickey_fromfile_ex)
DTRAIN_ABSENT(libssh2_version)
// HTTP/2
DTRAIN_ABSENT(nghttp2_http2_strerror)
DTRAIN_ABSENT(nghttp2_is_fatal)
DTRAIN_ABSENT(nghttp2_option_del)
DTRAIN_ABSENT(nghttp2_option_new)
DTRAIN_ABSENT(nghttp2_option_set_no_rfc9113_leading_and_trailing_ws_validation)
DTRAIN_ABSENT(nghttp2_pack_settings_payload)
DTRAIN_ABSENT(nghttp2_priority_spec_init)
DTRAIN_ABSENT(nghttp2_session_callbacks_del)
DTRAIN_ABSENT(nghttp2_session_callbacks_new)
DTRAIN_ABSENT(nghttp2_session_callbacks_set_error_callback)
DTRAIN_ABSENT(nghttp2_session_callbacks_set_on_begin_headers_callback)
DTRAIN_ABSENT(nghttp2_session_callbacks_set_on_data_chunk_recv_callback)
DTRAIN_ABSENT(nghttp2_session_callbacks_set_on_frame_recv_callback)
DTRAIN_ABSENT(nghttp2_session_callbacks_set_on_header_callback)
DTRAIN_ABSENT(nghttp2_session_callbacks_set_on_stream_close_callback)
DTRAIN_ABSENT(nghttp2_session_callbacks_set_send_callback)
DTRAIN_ABSENT(nghttp2_session_check_request_allowed)
DTRAIN_ABSENT(nghttp2_session_client_new2)
DTRAIN_ABSENT(nghttp2_session_del)
DTRAIN_ABSENT(nghttp2_session_get_remote_settings)
DTRAIN_ABSENT(nghttp2_session_get_remote_window_size)
DTRAIN_ABSENT(nghttp2_session_get_stream_remote_window_size)
DTRAIN_ABSENT(nghttp2_session_get_stream_user_data)
DTRAIN_ABSENT(nghttp2_session_mem_recv)
DTRAIN_ABSENT(nghttp2_session_resume_data)
DTRAIN_ABSENT(nghttp2_session_send)
DTRAIN_ABSENT(nghttp2_session_set_local_window_size)
DTRAIN_ABSENT(nghttp2_session_set_stream_user_data)
DTRAIN_ABSENT(nghttp2_session_upgrade2)
DTRAIN_ABSENT(nghttp2_session_want_read)
DTRAIN_ABSENT(nghttp2_session_want_write)
DTRAIN_ABSENT(nghttp2_strerror)
DTRAIN_ABSENT(nghttp2_submit_ping)
DTRAIN_ABSENT(nghttp2_submit_priority)
DTRAIN_ABSENT(nghttp2_submit_request)
DTRAIN_ABSENT(nghttp2_submit_rst_stream)
DTRAIN_ABSENT(nghttp2_submit_settings)
DTRAIN_ABSENT(nghttp2_version)
// cookies
DTRAIN_ABSENT(psl_builtin)
DTRAIN_ABSENT(psl_free)
DTRAIN_ABSENT(psl_get_version)
DTRAIN_ABSENT(psl_is_cookie_domain_acceptable)
DTRAIN_ABSENT(psl_latest)
}
