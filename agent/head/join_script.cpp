#include "agent/head/join_script.hpp"

#include <array>
#include <functional>
#include <utility>

#include "launcher/core/text.hpp"

namespace dtrain::head {
namespace {

// All of it is one command, so that nothing of a script that was cut off is run. The answer is
// taken with its head, by each program alike, and split here. Whatever reads stdin is kept from it:
// the rest of the script may come from there. TLS 1.3 is what the head insists on. curl would trust
// its built-in CA folder too, and openssl before 1.1.1b checks nothing without -verify. An address
// that says nothing for a while is left; the pauses grow, and differ between machines. A head that
// moves is looked for where it is by then. An agent that is where agents are kept was checked
// before it came there. What the script is given goes to the agent, which in a container takes the
// shell's place.
constexpr const char* kScript =
    R"sh(# Makes this machine node @NODE@ of the dtrain cluster @CLUSTER@.
{
umask 077
export LC_ALL=C
X=$*
P=@PORT@ A='@ADDRESSES@' L=@PLACE@
die() { echo "dtrain: $*" >&2; exit 1; }
[ "$(uname -sm)" = 'Linux x86_64' ] || die "the agent is for Linux on x86_64, and this is $(uname -sm)"
[ "$HOME" ] || eval "HOME=~$(id -un)"
export HOME
V=${DTRAIN_SPARE_ROOT:-/var/tmp/dtrain-$(id -u)}
for B in "$HOME/.dtrain" "$V"; do
if [ "$B" = "$V" ]; then mkdir "$B"; [ -O "$B" ] && [ -d "$B" ] && [ ! -L "$B" ] && chmod 700 "$B" || continue; fi
D=$B/agents/.join.$$
mkdir -p "$B/agents" && mkdir "$D" && echo '#!/bin/sh' >"$D/x" && chmod 700 "$D/x" && "$D/x" && break
D=
done 2>/dev/null
[ "$D" ] || die "neither $HOME nor /var/tmp takes a program"
p=
trap '[ "$p" ] && kill $p; cd /; rm -rf "$D"' EXIT
trap 'exit 1' HUP INT TERM USR1
cd "$D" && mkdir none || exit
cat >key.pem <<E
@KEY@E
cat >cert.pem <<E
@CERTIFICATE@E
cat >ca.pem <<E
@CA@E
get() {
case $2 in *:*) h="[$2]" ;; *) h=$2 ;; esac
case $1 in
curl) exec curl -qsSi --noproxy '*' --resolve "head:$P:$h" --cacert ca.pem --capath none --cert cert.pem --key key.pem "https://head:$P/v1/join/agent" ;;
python3) exec python3 -c 'import socket,ssl,sys
c=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
c.load_verify_locations("ca.pem")
c.load_cert_chain("cert.pem","key.pem")
s=c.wrap_socket(socket.create_connection((sys.argv[1],sys.argv[2])),server_hostname="head")
s.sendall(b"GET /v1/join/agent HTTP/1.1\r\nHost: head\r\n\r\n")
while 1:
 b=s.recv(65536)
 if not b: break
 sys.stdout.buffer.write(b)' "$2" $P ;;
openssl) printf 'GET /v1/join/agent HTTP/1.1\r\nHost: head\r\n\r\n' >q; exec openssl s_client -quiet -verify 5 -verify_return_error -verify_hostname head -CAfile ca.pem -cert cert.pem -key key.pem -connect "$h:$P" <q ;;
esac
}
fetch() {
get $1 $2 >r 2>e </dev/null & p=$!
(trap 'kill $s; exit' TERM
n=0 was=
while sleep 1 & s=$!; wait $s; kill -0 $p; do
is=$(wc -c <r)
[ "$is" = "$was" ] && n=$((n+1)) || n=0
was=$is
[ $n -lt 20 ] || { echo "error: $2 says nothing" >>e; kill $p; break; }
done) >/dev/null 2>&1 & w=$!
{ wait $p; kill $w; wait $w; } 2>/dev/null
p=
}
field() { sed -n "/^.\$/q;s/^$1: \"*\([0-9a-f]*\).*/\1/p" r; }
start() {
F=$B/agents/$S/dtrain-agent
[ -x "$F" ] || { [ -e a ] || return; chmod 700 a && mkdir -p "../$S" && mv -f a "$F"; } || die "cannot keep the agent in $B"
E=
case $X in *--contained*) E=exec ;; esac
cd /
$E "$F" join --credential "$D" --port $P $(for x in $*; do echo "--address $x"; done) ${L:+"--place=$L"} $X </dev/null
exit
}
S=@AGENT@
start $A
T=
W=
for i in 0 1 2 3 4 5 6 7 8; do
[ $i = 0 ] || { s=$((i*i+@SPREAD@)); echo "dtrain: not yet:$W Trying again in $s s" >&2; sleep $s; }
[ -r "$L" ] && read -r p a <"$L" && P=$p A=$a
p=
W=
for t in curl python3 openssl; do
command -v $t >/dev/null || continue
T=1
for a in $A; do
fetch $t $a
case $(sed -n '1s/^HTTP[^ ]* \([0-9]*\).*/\1/p;q' r) in
200)
tail -c "$(field Content-Length)" r >a
S=$(field ETag)
[ "$(sha256sum a | cut -c-64)" = "$S" ] || { W="$W $t: the agent came damaged from $a."; continue; }
start $a $A ;;
4*) die "the head refuses: $(sed '1,/^.$/d' r)" ;;
5*) W=" the head at $a says: $(sed '1,/^.$/d' r)."; break 2 ;;
*) grep -qi -e 'protocol version' -e 'unsupported protocol' e && W="$W $t here speaks no TLS 1.3." ||
W="$W $t: $(grep -i -e error -e problem -e ^curl: e | head -n 1)." ;;
esac
done
done
[ $T ] || die 'curl, python3 or openssl is needed: dtrain up adds this machine over SSH'
done
die "cannot fetch the agent from the head, at $A port $P:$W The clock here says $(date -u). dtrain up adds this machine over SSH."
}
)sh";

}  // namespace

std::string join_script(const JoinScript& what) {
  const std::array<std::pair<std::string, std::string>, 10> values{{
      {"@NODE@", what.node.str()},
      {"@CLUSTER@", what.cluster.str()},
      {"@PORT@", std::to_string(what.port)},
      {"@ADDRESSES@", join(what.addresses, " ")},
      {"@PLACE@", what.place.empty() ? "" : shell_quote(what.place)},
      {"@KEY@", what.credential.key_pem},
      {"@CERTIFICATE@", what.credential.certificate_pem},
      {"@CA@", what.ca_pem},
      {"@AGENT@", what.agent},
      {"@SPREAD@", std::to_string(std::hash<std::string>{}(what.credential.key_pem) % 10)},
  }};
  std::string script = kScript;
  for (const auto& [name, value] : values) {
    script.replace(script.find(name), name.size(), value);
  }
  return script;
}

}  // namespace dtrain::head
