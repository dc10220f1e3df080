#include "launcher/wire/identity.hpp"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/ssl/context.hpp>
#include <boost/system/system_error.hpp>
#include <cerrno>
#include <cstdio>
#include <span>

#include "launcher/core/error.hpp"
#include "launcher/core/failpoint.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::wire {
namespace {

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};
using Bio = std::unique_ptr<BIO, Freer<BIO_free_all>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freer<X509_free>>;
using Request = std::unique_ptr<X509_REQ, Freer<X509_REQ_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freer<X509_EXTENSION_free>>;

struct FreeNames {
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
};
struct FreeExtensions {
  void operator()(STACK_OF(X509_EXTENSION) * list) const {
    sk_X509_EXTENSION_pop_free(list, X509_EXTENSION_free);
  }
};

[[noreturn]] void openssl_failed(const std::string& doing) {
  std::array<char, 256> text{};
  ERR_error_string_n(ERR_get_error(), text.data(), text.size());
  ERR_clear_error();
  throw Error(ErrorCode::internal, std::string("OpenSSL: ") + text.data()).while_doing(doing);
}

void must(bool good, const char* doing) {
  if (!good) openssl_failed(doing);
}

Bio memory(const std::string& text) {
  Bio bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  must(bio != nullptr, "reading PEM");
  return bio;
}

template <typename Write>
std::string pem_of(Write write) {
  const Bio bio(BIO_new(BIO_s_mem()));
  must(bio != nullptr && write(bio.get()) == 1, "writing PEM");
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<std::size_t>(size)};
}

// Every PEM is ours or came over an authenticated channel; still, no prompt for a passphrase.
int no_passphrase(char*, int, int, void*) {
  return -1;
}

Key read_key(const std::string& pem) {
  Key key(PEM_read_bio_PrivateKey(memory(pem).get(), nullptr, no_passphrase, nullptr));
  if (!key) throw Error(ErrorCode::invalid, "not a private key in PEM");
  return key;
}

Certificate read_certificate(const std::string& pem) {
  Certificate certificate(PEM_read_bio_X509(memory(pem).get(), nullptr, no_passphrase, nullptr));
  if (!certificate) throw Error(ErrorCode::invalid, "not a certificate in PEM");
  return certificate;
}

Request read_request(const std::string& pem) {
  Request request(PEM_read_bio_X509_REQ(memory(pem).get(), nullptr, no_passphrase, nullptr));
  if (!request) throw Error(ErrorCode::denied, "not a certificate request in PEM");
  return request;
}

void set_subject(X509_NAME* name, const std::string& common_name) {
  must(X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                                  reinterpret_cast<const unsigned char*>(common_name.data()),
                                  static_cast<int>(common_name.size()), -1, 0) == 1,
       "naming a certificate");
}

void add_extension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  must(extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1,
       "adding an extension");
}

Certificate begin_certificate(EVP_PKEY* public_key, WallTime now, std::chrono::hours life) {
  Certificate certificate(X509_new());
  must(certificate != nullptr, "making a certificate");
  X509_set_version(certificate.get(), X509_VERSION_3);
  std::array<unsigned char, 16> serial{};
  must(RAND_bytes(serial.data(), serial.size()) == 1, "making a serial number");
  serial[0] &= 0x7F;
  const std::unique_ptr<BIGNUM, Freer<BN_free>> number(
      BN_bin2bn(serial.data(), serial.size(), nullptr));
  BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate.get()));
  const auto at = [&](WallTime time) { return std::chrono::system_clock::to_time_t(time); };
  ASN1_TIME_set(X509_getm_notBefore(certificate.get()), at(now - kClockTolerance));
  ASN1_TIME_set(X509_getm_notAfter(certificate.get()), at(now + life));
  must(X509_set_pubkey(certificate.get(), public_key) == 1, "setting a certificate's key");
  return certificate;
}

std::string only_uri(const GENERAL_NAMES* names) {
  if (names == nullptr || sk_GENERAL_NAME_num(names) != 1) {
    throw Error(ErrorCode::denied, "the certificate does not carry exactly one name");
  }
  const GENERAL_NAME* name = sk_GENERAL_NAME_value(names, 0);
  if (name->type != GEN_URI) throw Error(ErrorCode::denied, "the certificate's name is no URI");
  const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
          static_cast<std::size_t>(ASN1_STRING_length(uri))};
}

constexpr std::array kRoleNames{"head", "node", "join"};

const char* role_name(PeerName::Role role) {
  return kRoleNames[static_cast<std::size_t>(role)];
}

std::string sum_of_certificate(X509* certificate) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> sum{};
  unsigned size = 0;
  must(X509_digest(certificate, EVP_sha256(), sum.data(), &size) == 1, "summing a certificate");
  return to_hex(std::span(sum).first(size));
}

PeerName name_in(X509* certificate) {
  const std::unique_ptr<GENERAL_NAMES, FreeNames> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  return PeerName::parse(only_uri(names.get()));
}

}  // namespace

std::string PeerName::uri() const {
  return "dtrain://" + cluster.str() + "/" + role_name(role) + "/" + node.str();
}

PeerName PeerName::parse(const std::string& uri) {
  const std::vector<std::string> parts = split(uri, '/');
  PeerName name;
  const bool shape = parts.size() == 5 && parts[0] == "dtrain:" && parts[1].empty() &&
                     valid_name(parts[2]) && valid_name(parts[4]);
  const auto role =
      shape ? std::find(kRoleNames.begin(), kRoleNames.end(), parts[3]) : kRoleNames.end();
  if (role == kRoleNames.end()) {
    throw Error(ErrorCode::denied, "not a name of a dtrain certificate: " + uri);
  }
  name.cluster = ClusterId(parts[2]);
  name.role = static_cast<Role>(role - kRoleNames.begin());
  name.node = NodeId(parts[4]);
  return name;
}

std::string make_key() {
  const Key key(EVP_EC_gen("P-256"));
  must(key != nullptr, "making a key");
  return pem_of([&](BIO* bio) {
    return PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
}

CertifiedKey make_ca(const ClusterId& cluster, WallTime now) {
  CertifiedKey ca;
  ca.key_pem = make_key();
  const Key key = read_key(ca.key_pem);
  // The CA lives as long as the cluster may: ten years.
  const Certificate certificate =
      begin_certificate(key.get(), now, std::chrono::hours(24 * 365 * 10));
  set_subject(X509_get_subject_name(certificate.get()), "dtrain CA of " + cluster.str());
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate.get()));
  add_extension(certificate.get(), certificate.get(), NID_basic_constraints,
                "critical,CA:TRUE,pathlen:0");
  add_extension(certificate.get(), certificate.get(), NID_key_usage,
                "critical,keyCertSign,cRLSign");
  add_extension(certificate.get(), certificate.get(), NID_subject_key_identifier, "hash");
  must(X509_sign(certificate.get(), key.get(), EVP_sha256()) > 0, "signing the CA's certificate");
  ca.certificate_pem = pem_of([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate.get()); });
  return ca;
}

std::string make_request(const std::string& key_pem, const PeerName& name) {
  const Key key = read_key(key_pem);
  const Request request(X509_REQ_new());
  must(request != nullptr, "making a request");
  set_subject(X509_REQ_get_subject_name(request.get()), name.node.str());
  must(X509_REQ_set_pubkey(request.get(), key.get()) == 1, "making a request");
  const Extension extension(
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, ("URI:" + name.uri()).c_str()));
  must(extension != nullptr, "naming a request");
  const std::unique_ptr<STACK_OF(X509_EXTENSION), FreeExtensions> list(
      sk_X509_EXTENSION_new_null());
  sk_X509_EXTENSION_push(list.get(), X509_EXTENSION_dup(extension.get()));
  must(X509_REQ_add_extensions(request.get(), list.get()) == 1, "naming a request");
  must(X509_REQ_sign(request.get(), key.get(), EVP_sha256()) > 0, "signing a request");
  return pem_of([&](BIO* bio) { return PEM_write_bio_X509_REQ(bio, request.get()); });
}

PeerName requested_name(const std::string& request_pem) {
  const Request request = read_request(request_pem);
  EVP_PKEY* key = X509_REQ_get0_pubkey(request.get());
  if (key == nullptr || X509_REQ_verify(request.get(), key) != 1) {
    ERR_clear_error();
    throw Error(ErrorCode::denied, "the request is not signed by its own key");
  }
  const std::unique_ptr<STACK_OF(X509_EXTENSION), FreeExtensions> list(
      X509_REQ_get_extensions(request.get()));
  const std::unique_ptr<GENERAL_NAMES, FreeNames> names(static_cast<GENERAL_NAMES*>(
      X509V3_get_d2i(list.get(), NID_subject_alt_name, nullptr, nullptr)));
  return PeerName::parse(only_uri(names.get()));
}

std::string sign_request(const CertifiedKey& ca, const std::string& request_pem,
                         const PeerName& name, WallTime now) {
  const PeerName asked = requested_name(request_pem);
  if (asked != name) {
    throw Error(ErrorCode::denied,
                "the request asks for " + asked.uri() + " and not for " + name.uri());
  }
  const Key ca_key = read_key(ca.key_pem);
  const Certificate ca_certificate = read_certificate(ca.certificate_pem);
  const Request request = read_request(request_pem);
  const Certificate certificate =
      begin_certificate(X509_REQ_get0_pubkey(request.get()), now, kCertificateLife);
  // Nothing but the key is taken from the request.
  set_subject(X509_get_subject_name(certificate.get()), name.node.str());
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(ca_certificate.get()));
  add_extension(certificate.get(), ca_certificate.get(), NID_basic_constraints,
                "critical,CA:FALSE");
  add_extension(certificate.get(), ca_certificate.get(), NID_key_usage,
                "critical,digitalSignature");
  add_extension(certificate.get(), ca_certificate.get(), NID_ext_key_usage,
                name.role == PeerName::Role::head ? "serverAuth" : "clientAuth");
  add_extension(certificate.get(), ca_certificate.get(), NID_subject_alt_name, "URI:" + name.uri());
  add_extension(certificate.get(), ca_certificate.get(), NID_authority_key_identifier, "keyid");
  must(X509_sign(certificate.get(), ca_key.get(), EVP_sha256()) > 0, "signing a certificate");
  return pem_of([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate.get()); });
}

namespace {

WallTime end_of(const X509* certificate) {
  std::tm utc{};
  must(ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &utc) == 1, "reading a certificate's end");
  return std::chrono::system_clock::from_time_t(timegm(&utc));
}

}  // namespace

WallTime expires(const std::string& certificate_pem) {
  return end_of(read_certificate(certificate_pem).get());
}

PeerName certified_name(const std::string& certificate_pem) {
  return name_in(read_certificate(certificate_pem).get());
}

std::string fingerprint(const std::string& certificate_pem) {
  return sum_of_certificate(read_certificate(certificate_pem).get());
}

std::string key_fingerprint(const std::string& request_pem) {
  const Request request = read_request(request_pem);
  std::array<unsigned char, EVP_MAX_MD_SIZE> sum{};
  unsigned size = 0;
  unsigned char* der = nullptr;
  const int length = i2d_X509_PUBKEY(X509_REQ_get_X509_PUBKEY(request.get()), &der);
  must(length > 0, "reading a request's key");
  const bool summed = EVP_Digest(der, static_cast<std::size_t>(length), sum.data(), &size,
                                 EVP_sha256(), nullptr) == 1;
  OPENSSL_free(der);
  must(summed, "summing a request's key");
  return to_hex(std::span(sum).first(size));
}

void save_identity(const fs::path& folder, const std::string& key_pem,
                   const std::string& certificate_pem, const std::string& ca_pem) {
  make_folders(folder);
  write_file_atomic(folder / "key.pem", key_pem, 0600);
  write_file_atomic(folder / "ca.pem", ca_pem, 0600);
  write_file_atomic(folder / "cert.pem", certificate_pem, 0600);
}

void replace_identity(const fs::path& folder, const std::string& key_pem,
                      const std::string& certificate_pem, const std::string& ca_pem) {
  const Key key = read_key(key_pem);
  const Certificate certificate = read_certificate(certificate_pem);
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    ERR_clear_error();
    throw Error(ErrorCode::denied, "the certificate is not for this key");
  }
  const fs::path fresh = folder.string() + ".new";
  remove_tree(fresh);
  save_identity(fresh, key_pem, certificate_pem, ca_pem);
  ::chmod(fresh.c_str(), 0700);
  failpoint("identity.rename.before");
  // The two change places at once, where the file system can do that.
  if (::syscall(SYS_renameat2, AT_FDCWD, fresh.c_str(), AT_FDCWD, folder.c_str(),
                RENAME_EXCHANGE) != 0) {
    const fs::path old = folder.string() + ".old";
    remove_tree(old);
    if (::rename(folder.c_str(), old.c_str()) != 0 ||
        ::rename(fresh.c_str(), folder.c_str()) != 0) {
      throw errno_error("cannot put a new identity in place of " + folder.string(), errno);
    }
    remove_tree(old);
  }
  failpoint("identity.rename.after");
  fsync_folder(folder.parent_path());
  remove_tree(fresh);
}

bool renewal_due(const std::string& certificate_pem, WallTime now) {
  return expires(certificate_pem) - now <= kCertificateLife / 2;
}

namespace {

using SslContext = boost::asio::ssl::context;

std::shared_ptr<SslContext> context_of(const fs::path& identity_folder, SslContext::method method) {
  auto context = std::make_shared<SslContext>(method);
  try {
    SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_3_VERSION);
    SSL_CTX_set_session_cache_mode(context->native_handle(), SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(context->native_handle(), 0);
    // Of the connections of a head most are silent at a time: no buffers for those.
    SSL_CTX_set_mode(context->native_handle(), SSL_MODE_RELEASE_BUFFERS);
    context->use_private_key_file((identity_folder / "key.pem").string(), SslContext::pem);
    context->use_certificate_chain_file((identity_folder / "cert.pem").string());
    context->load_verify_file((identity_folder / "ca.pem").string());
    context->set_verify_mode(boost::asio::ssl::verify_peer |
                             boost::asio::ssl::verify_fail_if_no_peer_cert);
  } catch (const boost::system::system_error& error) {
    throw Error(ErrorCode::invalid, error.what())
        .while_doing("reading the identity in " + identity_folder.string());
  }
  return context;
}

}  // namespace

std::shared_ptr<boost::asio::ssl::context> tls_context(const fs::path& identity_folder,
                                                       PeerName::Role our_role) {
  return context_of(identity_folder, our_role == PeerName::Role::head ? SslContext::tls_server
                                                                      : SslContext::tls_client);
}

std::shared_ptr<boost::asio::ssl::context> tls_pair_context(const fs::path& identity_folder) {
  auto context = context_of(identity_folder, SslContext::tls);
  // A node's certificate is for dialling; here one of them listens, and says by its name who it is.
  X509_VERIFY_PARAM_set_purpose(SSL_CTX_get0_param(context->native_handle()), X509_PURPOSE_ANY);
  return context;
}

namespace {

Certificate shown_by(ssl_st* tls) {
  Certificate certificate(SSL_get1_peer_certificate(tls));
  if (!certificate) throw Error(ErrorCode::denied, "the peer showed no certificate");
  return certificate;
}

}  // namespace

PeerName peer_name(ssl_st* tls) {
  return name_in(shown_by(tls).get());
}

std::string peer_fingerprint(ssl_st* tls) {
  return sum_of_certificate(shown_by(tls).get());
}

WallTime peer_certified(ssl_st* tls) {
  return end_of(shown_by(tls).get()) - kCertificateLife;
}

}  // namespace dtrain::wire
